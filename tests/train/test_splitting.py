"""A model that begins as another one, with as many states or with several for each."""

import dataclasses

import pytest
import torch

from bighmm.data.tokenizers import Words
from bighmm.lm.hmmlm import HMMLM
from bighmm.model.options import OPTIONS
from bighmm.model.params.splitting import split_states
from bighmm.model.support import Blocked, Dense
from bighmm.train.recipe import from_dict
from bighmm.train.run import train_run

WORDS = Words.build(["a b c d e f g"] * 3, min_count=1)
BLOCK_OF = torch.arange(WORDS.size) % 3

BLOCKED = [
    ("neural", {}),
    ("neural", {"transitions": "flat"}),
    ("neural", {"transitions": "table", "emission": "direct", "start": "direct"}),
    ("neural", {"embeddings": "factored", "choosing": "leaving"}),
    ("ablation-b", {"transitions": "two-level"}),
    ("monolithic-mlp", {"transitions": "two-level", "start": "direct"}),
    ("scalar", {}),
    ("scalar", {"transitions": "two-level"}),
]
DENSE = [("neural", {"scaled": True}), ("chiu-rush", {}), ("scalar", {})]


def made(name, options, support, seed=1):
    kind = OPTIONS[name]
    if "width" in kind.__dataclass_fields__:
        options = {"width": 8, **options}
    return HMMLM(name, kind(**options), support, WORDS, seed=seed)


@pytest.mark.parametrize(
    "name, options, support",
    [(*case, Blocked.of(BLOCK_OF, 6)) for case in BLOCKED]
    + [(*case, Dense(4, WORDS.size)) for case in DENSE],
)
@pytest.mark.parametrize("times", [1, 3])
def test_the_distribution_stays_the_same(name, options, support, times):
    old = made(name, options, support)
    new = made(name, options, support.with_states(times * support.num_states), seed=2)
    old.params.double(), new.params.double()
    split_states(old.params, new.params, noise=0.0, seed=0)
    texts = [[0, 3, 1, 6, 2], [5], [2, 2, 4, 1]]
    torch.testing.assert_close(new.hmm().log_prob(texts), old.hmm().log_prob(texts))
    torch.testing.assert_close(new.hmm().next_token(texts), old.hmm().next_token(texts))
    shares = new.hmm().posterior(texts[:1]).marginals[0]
    whole = old.hmm().posterior(texts[:1]).marginals[0]
    torch.testing.assert_close(shares.view(len(whole), -1, times).sum(-1), whole)


def test_noise_only_where_states_are_split():
    support = Blocked.of(BLOCK_OF, 6)
    old = made("neural", {}, support)
    same = made("neural", {}, support, seed=2)
    split_states(old.params, same.params, noise=0.5, seed=0)
    for one, other in zip(old.params.parameters(), same.params.parameters(), strict=True):
        assert torch.equal(one, other)
    twice = made("neural", {}, support.with_states(12), seed=2)
    split_states(old.params, twice.params, noise=0.5, seed=0)
    table, before = twice.params.state.table, old.params.state.table
    assert not torch.equal(table[0::2], table[1::2])
    ratio = (table[0::2] - before).detach().std() / before.detach().std()
    assert 0.2 < float(ratio) < 0.8
    assert torch.equal(twice.params.words, old.params.words)


def test_what_cannot_be_split():
    blocked, dense = Blocked.of(BLOCK_OF, 6), Dense(4, WORDS.size)
    old = made("neural", {}, blocked)
    with pytest.raises(ValueError, match="9 states cannot be split from 6"):
        split_states(old.params, made("neural", {}, blocked.with_states(9)).params, 0.0, 0)
    with pytest.raises(ValueError, match="use the same options"):
        split_states(old.params, made("neural", {"width": 4}, blocked).params, 0.0, 0)
    with pytest.raises(ValueError, match="use the same options"):
        split_states(old.params, made("scalar", {}, blocked).params, 0.0, 0)
    transformer = {"heads": 2, "layers": 1}
    over_states = made("transformer", transformer, dense)
    split_states(over_states.params, made("transformer", transformer, dense).params, 0.0, 0)
    with pytest.raises(ValueError, match="changes when its states are split"):
        more = made("transformer", transformer, dense.with_states(8))
        split_states(over_states.params, more.params, 0.0, 0)


def test_a_run_begins_with_another(tmp_path, bighmm):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"w{i % 5} w{i * i % 7} w{i % 3}" for i in range(200)) + "\n")
    settings = {
        "corpus": {"data": str(text)},
        "model": {"states": 8, "blocks": 4},
        "options": {"width": 4},
        "training": {"epochs": 2, "state_dropout": 0.0, "device": "cpu"},
    }
    first = train_run(tmp_path / "first", from_dict(settings, "r"))
    grown = from_dict(settings, "r").changed(
        model={"states": 16},
        initial={"init_from": str(tmp_path / "first"), "split_noise": 0.0},
        training={"epochs": 0.01, "lr": 1e-9, "schedule": "constant"},
    )
    second = train_run(tmp_path / "second", grown)
    assert second["test"]["perplexity"] == pytest.approx(first["test"]["perplexity"], rel=1e-4)
    for change, said in (
        ({"blocks": 2}, "has 4 blocks, which are kept; use --blocks 4"),
        ({"states": 12}, "12 states cannot be split from 8; use 8 or a multiple"),
        ({"support": "dense"}, "has a blocked support, not a dense one"),
        ({"parameterisation": "scalar"}, "of neural parameters, not of scalar"),
    ):
        with pytest.raises(ValueError, match=said):
            train_run(tmp_path / "other", grown.changed(model=change))
    other = tmp_path / "other.txt"
    other.write_text("these are other words\n" * 20)
    with pytest.raises(ValueError, match=r"another vocabulary than .*other.txt"):
        train_run(tmp_path / "other", grown.changed(corpus={"data": str(other)}))
    with pytest.raises(ValueError, match="init_from has all parameters already"):
        dataclasses.replace(grown, initial=dataclasses.replace(grown.initial, head="x"))
    asked = ("--init-from", tmp_path / "first", "--states", 16, "--out", tmp_path / "third")
    done = bighmm("train", *asked, "--epochs", 1)
    assert done.status == 0, done.err
