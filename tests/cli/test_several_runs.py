"""Recipes by name, runs that go on for longer, runs side by side, and mistakes about all these."""

import json
import os
import shutil
import signal
import time

import pytest

from bighmm.cli.compare import HEIGHT, curves
from bighmm.train.run import saved_recipe


@pytest.fixture
def copy(trained, tmp_path, monkeypatch):
    """A copy of the trained run as runs/one of the current folder."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(trained, tmp_path / "runs" / "one")
    return tmp_path / "runs" / "one"


def checks(run):
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [line for line in lines if line["kind"] == "check"]


def test_a_finished_run_is_trained_longer(copy, bighmm):
    before = checks(copy)
    done = bighmm("train", "--resume", "--out", copy, "--epochs", 2)
    assert done.status == 0, done.err
    after = checks(copy)
    assert after[: len(before)] == before and len(after) == 2 * len(before)
    saved = json.loads((copy / "recipe.json").read_text())
    assert saved["recipe"]["training"]["epochs"] == 2
    assert saved["extended"] == [{"step": before[-1]["step"], "epochs": 1.0}]
    # The rate is that of a run of two epochs at this step: half of the way down.
    steps = [json.loads(line) for line in (copy / "log.jsonl").read_text().splitlines()]
    rates = {s["step"]: s["lr"] for s in steps if s["kind"] == "step"}
    assert rates[before[-1]["step"] + 1] == pytest.approx(saved_recipe(copy)[0].training.lr / 2)
    done = bighmm("train", "--resume", "--out", copy, "--epochs", 1.5)
    assert done.status == 2 and "has already had 2 epochs" in done.err
    done = bighmm("train", "--resume", "--out", copy, "--lr", 1)
    assert done.status == 2 and "started with another configuration: training.lr" in done.err


def test_longer_is_the_same_as_long(text, small, tmp_path, bighmm):
    """With a constant rate a run that goes on to two epochs is one of two epochs."""
    flags = ("--data", text, *small, "--schedule", "constant")
    assert bighmm("train", *flags, "--out", tmp_path / "a").status == 0
    assert bighmm("train", "--resume", "--out", tmp_path / "a", "--epochs", 2).status == 0
    assert bighmm("train", *flags, "--epochs", 2, "--out", tmp_path / "b").status == 0
    one, two = checks(tmp_path / "a"), checks(tmp_path / "b")
    assert [c["perplexity"] for c in one] == [c["perplexity"] for c in two]


def test_resume_without_out(copy, bighmm, text, small):
    (copy / "result.json").unlink()
    done = bighmm("train", "--resume")
    assert done.status == 0 and "run: runs/one" in done.err, done.err
    shutil.copytree(copy, copy.with_name("two"))
    done = bighmm("train", "--resume")
    assert done.status == 2 and "runs/one, runs/two; say which with --out RUN" in done.err
    (copy / "result.json").unlink()  # the one that is not finished is meant
    assert "run: runs/one" in bighmm("train", "--resume").err
    done = bighmm("train", "--resume", "--data", text, *small, "--lr", 0.5)
    assert done.status == 2 and "there is no run of these settings in runs/" in done.err
    shutil.rmtree(copy.with_name("two"))
    done = bighmm("train", "--resume", "--epochs", 1.25)  # longer than before
    assert done.status == 0 and "run: runs/one" in done.err, done.err
    assert saved_recipe(copy)[0].training.epochs == 1.25
    shutil.rmtree(copy.parent)
    done = bighmm("train", "--resume")
    assert done.status == 2 and "there is no run in runs/; say which to resume" in done.err


def test_resume_by_the_flags_of_a_run(bighmm, text, tmp_path, monkeypatch):
    """What was chosen for the text need not be given again."""
    monkeypatch.chdir(tmp_path)
    flags = ("--data", text, "--states", 24, "--blocks", 4)
    assert bighmm("train", *flags, "--epochs", 0.1).status == 0
    done = bighmm("train", "--resume", *flags, "--epochs", 0.1)
    assert done.status == 0 and "run: runs/tiny.txt-24" in done.err, done.err
    done = bighmm("train", "--resume", "--states", 48, "--blocks", 4, "--epochs", 0.2)
    assert done.status == 2 and "there is no run of these settings in runs/" in done.err


def test_recipes(bighmm, ask, tmp_path):
    listed = bighmm("recipes").out
    assert "quickstart " in listed and "Python's own documentation" in listed
    assert 'data = "pydoc"' in bighmm("recipes", "quickstart").out
    assert ask("recipes", "quickstart")["recipe"]["model"]["states"] == 4096
    assert "ptb-4096" in ask("recipes")["recipes"]
    assert "there is no recipe nope" in bighmm("recipes", "nope").err
    assert "did you mean quickstart?" in bighmm("recipes", "quikstart").err
    done = bighmm("train", "quickstart", "--recipe", "ptb-4096")
    assert done.status == 2 and "two recipes are named, quickstart and ptb-4096" in done.err
    (tmp_path / "a.txt").write_text("some words\n" * 5)
    done = bighmm("train", tmp_path / "a.txt")
    assert done.status == 2 and f"type bighmm train --data {tmp_path / 'a.txt'}" in done.err


def test_train_by_a_packaged_recipe(bighmm, text, tmp_path):
    small = ("--states", 24, "--blocks", 4, "--width", 8, "--epochs", 0.1)
    flags = (*small, "--data", text, "--out", tmp_path / "run")
    assert bighmm("train", "quickstart", *flags).status == 0
    recipe = saved_recipe(tmp_path / "run")[0]
    assert recipe.options.start == "direct" and recipe.training.checks_per_epoch == 2
    assert recipe.model.states == 24


def test_data_by_its_path(bighmm, ask, text):
    assert ask("data", text) == ask("data", "--data", text)
    done = bighmm("data", text, "--data", "pydoc")
    assert done.status == 2 and "two corpora are named" in done.err


def test_compare(trained, text, small, tmp_path, bighmm, ask):
    other = tmp_path / "other"
    assert bighmm("train", "--data", text, *small, "--lr", 0.02, "--out", other).status == 0
    found = ask("compare", trained, other)
    assert found["differs"] == {"training.lr": [0.01, 0.02]} and found["same_text"]
    one = found["runs"][0]
    assert one["figures"]["finished"] and one["figures"]["test"] > 1
    assert [perplexity for _, perplexity in one["curve"]] == [
        check["perplexity"] for check in checks(trained)
    ]
    done = bighmm("compare", trained, other, "--plot", tmp_path / "curves.png")
    assert done.status == 0 and "training.lr" in done.out and "0.02" in done.out
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    (other / "result.json").write_text('{"valid": 3}')
    done = bighmm("compare", other)
    assert done.status == 2 and "result.json is damaged: it does not have the figures" in done.err
    result = json.loads((trained / "result.json").read_text())
    (other / "result.json").write_text(json.dumps(result | {"seconds": 10**400}))
    done = bighmm("compare", other)
    assert done.status == 2 and "result.json is damaged: it does not have the figures" in done.err
    with (other / "log.jsonl").open("a") as log:
        log.write('{"kind": "check", "step": 1, "perplexity": -5}\n')
    (other / "result.json").unlink()
    assert bighmm("compare", other).status == 0
    assert ask("compare", other)["runs"][0]["figures"]["test"] is None
    for arguments, said in (
        ([tmp_path], "holds no run"),
        ([trained, "--plot", "curves.txt"], "curves.txt cannot be a picture"),
        ([], "nothing to compare"),
    ):
        done = bighmm("compare", *arguments)
        assert done.status == 2 and (said in done.err or not arguments)


def test_curves_of_text():
    lines = curves([[(1.0, 100.0), (2.0, 50.0)], [(2.0, 50.0), (4.0, 25.0)]])
    assert len(lines) == HEIGHT + 4
    body = lines[1 : HEIGHT + 2]
    assert body[0].rstrip().endswith("A") and body[-1].endswith("B")
    assert "100.0" in body[0] and "25.0" in body[-1]
    assert sum(line.count("A") for line in body) == 2
    assert sum(line.count("B") for line in body) == 1  # the other is hidden by an A
    assert curves([[], []]) == []
    assert curves([[(1.0, 7.0)]])[-1].endswith("1")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--epochs", 0], "bighmm: epochs must be finite and above 0, not 0.0"),
        (["--data", ""], "data is empty; give pydoc, or a file or folder of text"),
        (["--family", "ngram", "--states", 16], "--states is for an HMM, and not for ngram"),
        (["--family", "lstm", "--blocks=4"], "--blocks is for an HMM, and not for lstm"),
    ],
)
def test_the_wrong_setting_is_named(bighmm, flags, said):
    done = bighmm("train", *flags)
    assert done.status == 2 and said in done.err and done.err.count("\n") == 1


def test_more_states_than_any_memory(bighmm, text, tmp_path):
    flags = ("--states", 10**9, "--support", "dense", "--out", tmp_path / "run")
    done = bighmm("train", "--data", text, *flags)
    assert done.status == 2 and "a model of 1,000,000,000 states has" in done.err
    assert "GiB; use fewer --states" in done.err and not (tmp_path / "run").exists()


def test_states_alone_and_blocks_alone(bighmm, text, tmp_path):
    flags = ("--data", text, "--width", 4, "--epochs", 0.1, "--device", "cpu")
    assert bighmm("train", *flags, "--states", 14, "--out", tmp_path / "a").status == 0
    model = saved_recipe(tmp_path / "a")[0].model
    assert model.states == 14 and 14 % model.blocks == 0
    assert bighmm("train", *flags, "--blocks", 5, "--out", tmp_path / "b").status == 0
    model = saved_recipe(tmp_path / "b")[0].model
    assert model.blocks == 5 and model.states % 5 == 0


def test_an_interruption_during_clustering_is_not_waited_for(
    bighmm, text, small, tmp_path, monkeypatch
):
    def cluster(*arguments, **options):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            time.sleep(0.01)
        pytest.fail("clustering went on")

    monkeypatch.setattr("bighmm.data.brown.cluster", cluster)
    flags = (*small, "--min-count", 3, "--out", tmp_path / "run")  # a text not clustered before
    # A shell's background job begins with the signal ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        done = bighmm("train", "--data", text, *flags)
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.status == 130 and "interrupted" in done.err
    assert not (tmp_path / "run" / "recipe.json").exists()


def test_next_commands_fit_the_corpus(trained, bighmm):
    done = bighmm("train", "--resume", "--out", trained)
    lines = [line for line in done.out.splitlines() if "bighmm next" in line]
    assert len(lines) == 1 and "'w" in lines[0] and "name of the" not in lines[0]


def test_switches_that_are_on_say_so(bighmm):
    shown = " ".join(bighmm("train", "--help").out.replace("│", " ").split())
    assert "--no-skip Skip connections in an MLP. (on unless this is given)" in shown
    assert "(default: True)" not in shown
