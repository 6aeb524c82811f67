"""Training on two texts: every kind of model, resumed runs, and what is refused."""

import random

import numpy as np
import pytest
import torch

from bighmm.data.corpus import prepare, write_corpus
from bighmm.train.loop import Stopped, Training
from bighmm.train.recipe import from_dict
from bighmm.train.run import Watch, saved_recipe, train_run
from bighmm.train.runner import EagerRunner
from bighmm.train.setup import new_model, open_data, open_more
from watching import Watcher, losses

KINDS = {
    "two-level": ({"states": 24, "blocks": 4}, {"width": 8}, {"rows": "touched"}),
    "flat": ({"states": 24, "blocks": 4}, {"width": 8, "transitions": "flat"}, {}),
    "dense": ({"states": 6, "support": "dense"}, {"width": 8}, {"state_dropout": 0}),
    "lstm": ({"family": "lstm"}, {"width": 8, "layers": 1}, {}),
}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    draw = random.Random(0)
    path = tmp_path_factory.mktemp("text") / "tiny.txt"
    lines = (" ".join(f"w{draw.randrange(30):02}" for _ in range(6)) for _ in range(150))
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def more(text, tmp_path):
    """A prepared text in the words of the other one, as `bighmm write` makes it."""
    tokenizer, draw = prepare(text).tokenizer, np.random.default_rng(0)
    rows = [[*draw.integers(0, tokenizer.size, 9), tokenizer.end] for _ in range(90)]
    splits = {"train": rows[:80], "valid": rows[80:85], "test": rows[85:]}
    arrays = {name: [np.array(row) for row in some] for name, some in splits.items()}
    writers = [{"name": "runs/t", "family": "lstm", "sha256": "1", "trained_on": "another"}]
    described = {"kind": "written", "name": "t", "writers": writers}
    return write_corpus(tmp_path / "more", tokenizer, arrays, described).folder


def recipe(text, more, kind="two-level", mixed=None, **training):
    model, options, others = KINDS[kind]
    settings = {"epochs": 2.5, "batch": 8, "window": 8, "device": "cpu", "lr": 0.03}
    return from_dict(
        {
            "corpus": {"data": str(text)},
            "model": model,
            "options": options,
            "training": settings | others | training,
            "mixed": {"more": str(more), "share": 0.75, "real_epochs": 0.5} | (mixed or {}),
        },
        "the test",
    )


def start(wanted, run):
    corpus = open_data(wanted.corpus)
    more = open_more(wanted, corpus)
    return Training(wanted, corpus, new_model(wanted, corpus), run, Watcher(), more)


@pytest.mark.parametrize("kind", KINDS)
def test_resumed_bit_for_bit(text, more, tmp_path, kind):
    """Interrupted in the middle of both texts, where one begins again, and in the last stretch."""
    wanted = recipe(text, more, kind)
    whole = start(wanted, tmp_path / "whole")
    whole.run()
    assert whole.total_steps == 38 and whole.batches.steps == 30
    assert not isinstance(whole.batches.batch(17).continues, bool)  # after 800 tokens in 6 rows
    for stop in (9, 17, 34):
        begun = start(wanted, tmp_path / f"{stop}")
        with pytest.raises(Stopped):
            begun.run(lambda begun=begun, stop=stop: begun.step == stop)
        resumed = start(wanted, tmp_path / f"{stop}")
        resumed.resume()
        assert resumed.step == stop
        resumed.run()
        assert losses(resumed.run_folder) == losses(whole.run_folder)
        parameters = zip(resumed.lm.params.parameters(), whole.lm.params.parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in parameters)


def test_rows_that_begin_anew_forget(text, more, tmp_path):
    """Where some rows begin anew their state is the first one, and the others keep theirs."""
    training = start(recipe(text, more, "lstm"), tmp_path)
    runner = training.runner
    assert isinstance(runner, EagerRunner)
    initial = runner.update.initial_state(8)
    state = {
        name: torch.rand_like(t) if t.is_floating_point() else t for name, t in initial.items()
    }
    batch = training.batches.batch(17)
    assert batch.continues.tolist() == [True] * 2 + [False] * 6
    found = runner._before(batch, state, len(batch.ids), None)
    for name in state:
        assert torch.equal(found[name][:2], state[name][:2])
        assert torch.equal(found[name][2:], initial[name][2:])
    assert runner._before(training.batches.batch(1), state, 8, None) is state
    anew = runner._before(training.batches.batch(0), state, 8, None)
    assert torch.equal(anew["cell"], initial["cell"])


def test_a_run_on_two_texts(text, more, tmp_path):
    said = []
    wanted = recipe(text, more, epochs=0.5, mixed={"real_epochs": 0.1})
    result = train_run(tmp_path / "run", wanted, watch=Watch(say=said.append))
    assert f"{more}: 800 more tokens, 6 of 8 rows of every batch" in said
    assert f"runs/t, which wrote it, was trained on another text than {text}" in said
    alone = train_run(tmp_path / "alone", recipe(text, more, epochs=0.5).changed(mixed=NONE))
    assert result["steps"] == alone["steps"]  # an epoch is a pass over the real text's length
    same = ("tokens", "unigram_perplexity")  # of real text
    assert all(result["test"][name] == alone["test"][name] for name in same)
    assert set(saved_recipe(tmp_path / "run")[1]) == {"corpus", "more"}
    assert set(saved_recipe(tmp_path / "alone")[1]) == {"corpus"}


NONE = {"more": None, "share": 0.9, "real_epochs": 0.0}


def test_a_run_resumes_with_the_same_second_text_wherever_it_is(text, more, tmp_path):
    wanted = recipe(text, more, epochs=0.5, mixed={"real_epochs": 0})
    with pytest.raises(Stopped):
        train_run(tmp_path / "run", wanted, should_stop=lambda: True)
    moved = more.rename(tmp_path / "moved")
    with pytest.raises(ValueError, match="more does not exist"):
        train_run(tmp_path / "run", wanted, resume=True)
    with pytest.raises(ValueError, match=r"another configuration: mixed.more \("):
        train_run(tmp_path / "run", wanted.changed(mixed=NONE), resume=True)
    other = tmp_path / "other.txt"
    other.write_text("w01 w02 w03\n" * 50)
    with pytest.raises(ValueError, match=r"was started on another corpus than \S+other.txt is now"):
        train_run(tmp_path / "run", wanted.changed(mixed={"more": str(other)}), resume=True)
    train_run(tmp_path / "run", wanted.changed(mixed={"more": str(moved)}), resume=True)
    assert saved_recipe(tmp_path / "run")[0].mixed.more == str(moved)


def test_refused(text, more, tmp_path, bighmm):
    other = tmp_path / "other.txt"
    other.write_text("these words are others\n" * 50)
    with pytest.raises(ValueError, match=r"more has another vocabulary than .*other.txt; both"):
        train_run(tmp_path / "run", recipe(other, more, epochs=0.5, mixed={"real_epochs": 0}))
    assert not (tmp_path / "run").exists()
    for share in (0, 1.1):
        with pytest.raises(ValueError, match="share must be above 0 and at most 1, not"):
            recipe(text, more, mixed={"share": share})
    for epochs in (3, -1):
        with pytest.raises(ValueError, match="real_epochs must be from 0 to the number of epochs"):
            recipe(text, more, mixed={"real_epochs": epochs})
    with pytest.raises(ValueError, match="a batch of 1 row cannot be shared"):
        recipe(text, more, batch=1)
    with pytest.raises(ValueError, match="share and real_epochs are about more text"):
        recipe(text, more).changed(mixed={"more": None})
    given = ("train", "--data", text, "--family", "ngram", "--more", more, "--out", tmp_path / "n")
    done = bighmm(*given)
    assert done.status == 2 and done.err.count("\n") == 1
    assert "a model of ngram counts one text; leave out --more" in done.err
