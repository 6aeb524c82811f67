"""A family, a support and a parameterisation from outside the package can be asked everything."""

import itertools
import json
import math
import shlex

import pytest
import torch

import toys
from bighmm import HMM, HMMLM
from bighmm import constraints as c
from bighmm.cli.main import main
from bighmm.data.tokenizers import Words
from bighmm.infer.reference import Enumeration
from bighmm.model.support import Blocked, Dense, PerToken
from bighmm.model.transitions import Table, restore_transitions
from infer.test_sampling import assert_drawn_from
from models import normalised_emission, random_hmm
from watching import losses

STATES, VOCABULARY = 4, 4
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
SUPPORTS = {
    "parity": toys.Parity(STATES, VOCABULARY),
    "dense": Dense(STATES, VOCABULARY),
    "blocked": Blocked.of(torch.tensor([0, 1, 0, 1]), STATES),
    "per-token": PerToken.random(VOCABULARY, STATES, 2, seed=1),
}
TEXTS = [[1, 2, 0, 3], [2], [3, 3, 1]]


def toy(transitions, support, device="cpu", dtype=torch.float64):
    generator = torch.Generator().manual_seed(3)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    support = SUPPORTS[support]
    emission = normalised_emission(support, normal(VOCABULARY, support.states_per_token))
    made = {
        "sticky": toys.Sticky(normal(()), normal(STATES)),
        "table": Table(normal(STATES, STATES)),
    }
    start = normal(STATES).log_softmax(0)
    return HMM(start, made[transitions], emission, support, end=0).to(device, dtype)


CASES = [("sticky", support) for support in SUPPORTS] + [("table", "parity")]


@pytest.fixture(params=itertools.product(CASES, DEVICES), ids=str)
def hmm(request):
    (transitions, support), device = request.param
    return toy(transitions, support, device)


def test_probabilities_and_states(hmm):
    found, best = hmm.posterior(TEXTS), hmm.viterbi(TEXTS)
    paths = hmm.best_paths(TEXTS, 3)
    for b, text in enumerate(TEXTS):
        truth = Enumeration(hmm, text)
        assert float(hmm.log_prob([text])) == pytest.approx(math.log(truth.prob))
        assert float(found.log_prob[b]) == pytest.approx(math.log(truth.prob))
        marginals = torch.zeros(len(text), STATES).double()
        here = found.states[b, : len(text)].cpu().clamp(min=0)
        marginals.scatter_add_(1, here, found.marginals[b, : len(text)].cpu())
        torch.testing.assert_close(marginals, truth.marginals())
        path, prob = truth.best()
        assert best.states[b, : len(text)].tolist() == list(path)
        ranked = sorted(truth.paths.values(), reverse=True)[:3]
        assert paths.log_prob[b].exp().tolist() == pytest.approx(ranked)
        assert prob == pytest.approx(ranked[0])
    assert float(hmm.log_prob([[]])) == 0
    following = hmm.next_token(TEXTS).exp().cpu()
    torch.testing.assert_close(following.sum(1), torch.ones(3).double())
    torch.testing.assert_close(following[0], Enumeration(hmm, TEXTS[0]).next_token())


def test_gradients(hmm):
    operands = [t.detach().clone().requires_grad_() for t in hmm.operands]
    count = len(hmm.transitions.operands)

    def log_prob(start, *others):
        transitions = hmm.transitions.with_operands(*others[:count])
        emissions = hmm.emissions.with_operands(*others[count:])
        made = HMM(start, transitions, emissions, hmm.support, hmm.end)
        return made.log_prob(TEXTS)

    assert torch.autograd.gradcheck(log_prob, operands)


def all_texts(length):
    return torch.cartesian_prod(*[torch.arange(VOCABULARY)] * length)


def test_samples(hmm):
    texts = all_texts(3)
    probs = hmm.log_prob(texts).exp().cpu()
    generator = torch.Generator(hmm.start.device).manual_seed(1)
    drawn = hmm.sample(2000, 3, generator=generator).cpu()
    assert_drawn_from(drawn, texts, probs)
    warm = hmm.sample(20, 3, generator=generator, temperature=0.5)
    assert warm.shape == (20, 3)


def test_gaps(hmm):
    text = torch.tensor([[1, -1, 3]])
    words = torch.tensor([[1, x, 3] for x in range(1, VOCABULARY)])
    expected = hmm.log_prob(words).softmax(0)
    found = hmm.fill_probs(text).words[0].exp()
    torch.testing.assert_close(found[1:], expected)
    assert found[0] == 0
    best = hmm.best_fill(text, 2)
    assert bool(best.exact) and best.words[0, 0, 1] == 1 + int(expected.argmax())
    generator = torch.Generator(hmm.start.device).manual_seed(1)
    drawn = hmm.fill(text, 2000, generator)[0, :, 1].cpu() - 1
    shares = torch.bincount(drawn, minlength=3) / 2000
    assert (shares - expected.cpu()).abs().max() < 0.05


def test_rules(hmm):
    rule = c.contains([[2]]) & ~c.contains([[1]])
    texts = [t for t in all_texts(3).tolist() if rule.matches(t)]
    expected = hmm.log_prob(torch.tensor(texts)).exp().sum()
    assert float(hmm.rule_log_prob(rule, 3).exp()) == pytest.approx(float(expected))
    total = hmm.next_token([[3]], rule=rule, remaining=3).exp().sum()
    assert float(total) == pytest.approx(1)
    assert all(rule.matches(text) for text in hmm.sample(50, 3, rule=rule).tolist())


def test_counts(hmm):
    counts = hmm.expected_counts(TEXTS)
    assert float(counts.emission.sum()) == pytest.approx(sum(map(len, TEXTS)))
    starts = sum(1 + text[:-1].count(0) for text in TEXTS)
    assert float(counts.start.sum()) == pytest.approx(starts)
    assert float(counts.transition.sum()) == pytest.approx(sum(map(len, TEXTS)) - starts)


def test_restriction_is_renormalised():
    transitions, kept = toy("sticky", "dense").transitions, torch.tensor([0, 2, 3])
    whole = transitions.log_probs().exp()[kept][:, kept]
    found = transitions.restrict(kept).log_probs().exp()
    torch.testing.assert_close(found, whole / whole.sum(1, keepdim=True))
    support = SUPPORTS["parity"]
    smaller = support.restrict(kept)
    for token in range(VOCABULARY):
        here = {int(s) for s in support.states(torch.tensor(token))} & set(kept.tolist())
        now = smaller.states(torch.tensor(token))
        assert {int(kept[s]) for s in now if s >= 0} == here


def test_a_family_is_read_back():
    made = toy("sticky", "dense").transitions
    again = restore_transitions(made.family, made.operands, made.settings())
    torch.testing.assert_close(again.log_probs(), made.log_probs())
    with pytest.raises(ValueError, match=r"no transition family 'stycky'; choose from .*sticky"):
        restore_transitions("stycky", made.operands, {})


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("support", ["parity", "dense", "blocked"])
def test_training_and_saving(support, dropout, device, tmp_path, capsys):
    words = " ".join(f"w{(i * i) % 11}" for i in range(400))
    text = tmp_path / "text.txt"
    text.write_text("\n".join(words[i : i + 60].strip() for i in range(0, len(words), 60)))
    run = str(tmp_path / "run")
    sizes = shlex.split("--states 8 --blocks 2 --batch 4 --window 8 --epochs 6 --lr 0.1")
    flags = ["--support", support, "--state-dropout", str(dropout), "--device", device]
    command = ["train", "--data", str(text), "--parameterisation", "sticky", *sizes, *flags]
    main([*command, "--stay", "2", "--out", run, "--json"])
    result = json.loads(capsys.readouterr().out)
    assert result["recipe"]["options"] == {"stay": 2.0}
    found = losses(tmp_path / "run")
    assert found[-1] < found[0]
    lm = HMMLM.from_pretrained(run)
    assert lm.params.support.kind == support and lm.parameterisation == "sticky"
    main(["eval", run, "--check-normalised", "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["largest_deviation_from_one"] < 1e-4
    assert found["perplexity"] == pytest.approx(result["test"]["perplexity"], rel=1e-3)
    main(["train", "--resume", "--out", run, "--json"])
    assert json.loads(capsys.readouterr().out)["test"] == result["test"]


def test_the_package_does_not_know_them():
    assert not random_hmm("dense-table").transitions.family.startswith("sticky")
    lm = HMMLM("sticky", toys.StickyOptions(), SUPPORTS["dense"], Words.build(["a b"]), seed=1)
    assert lm.hmm().transitions.family == "sticky"
