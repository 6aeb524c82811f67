"""--length means the same in every command, and --device is on every command with a model."""

import json

import pytest

from bighmm.lm.opening import open_model

OPENING = (
    *("ask", "eval", "score", "next", "sample", "rule", "fill", "tag", "states", "posterior"),
    "guide",
)


def texts_of(found):
    return [one["text"] for one in found["texts"]]


@pytest.fixture(scope="module")
def runs(trained, text, tmp_path_factory):
    """A run of each family."""
    from bighmm.cli.main import main

    found, folder = {"hmm": trained}, tmp_path_factory.mktemp("families")
    small = ("--width", "8", "--epochs", "0.2", "--batch", "8", "--window", "8", "--device", "cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BIGHMM_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        for family in ("ngram", "lstm"):
            options = () if family == "ngram" else small
            out = str(folder / family)
            main(["train", "--family", family, "--data", str(text), *options, "--out", out])
            found[family] = folder / family
    return found


@pytest.mark.parametrize("family", ["hmm", "ngram", "lstm"])
@pytest.mark.parametrize("length", [0, 2, 5])
def test_samples_of_every_family(ask, runs, family, length):
    lm = open_model(runs[family])
    asked = ("--length", length, "--n", 40, "--seed", 2, "--prefix", "w01 w07")
    texts = texts_of(ask("sample", runs[family], *asked))
    counts = [len(lm.encode(text)) - 2 for text in texts]
    assert max(counts) == length and all(lm.tokenizer.end not in lm.encode(text) for text in texts)
    if length == 5:
        assert min(counts) < length  # some have ended before


def test_samples_under_a_rule(ask, bighmm, runs):
    rule = ("--words", "3..3")
    texts = texts_of(ask("sample", runs["hmm"], *rule, "--length", 3, "--n", 5))
    assert all(len(text.split()) == 3 for text in texts)
    done = bighmm("sample", runs["hmm"], *rule, "--length", 2)
    assert done.status == 2 and "needs at least 3 tokens, but at most 2" in done.err


def test_next_under_a_rule(ask, runs):
    """With one token to come after w03, either it or the end mark is next."""
    found = ask("next", runs["hmm"], "w03", "--words", "..1", "--length", 1, "--n", 99)["next"]
    assert len(found) == 42
    (only,) = ask("next", runs["hmm"], "w03", "--not", "w01", "--length", 0)["next"]
    assert only["word"] == "<eos>" and only["prob"] == pytest.approx(1)


def test_the_default_is_one_hundred(ask, bighmm, runs):
    for command, said in (("sample", ". (default: 100)"), ("next", "; 100 if it is not given.")):
        shown = " ".join(bighmm(command, "--help").out.replace("│", " ").split())
        assert f"the end mark not counted{said}" in shown
    rule = ("--words", "100..", "--seed", 1, "--n", 1)
    assert len(texts_of(ask("sample", runs["hmm"], *rule))[0].split()) == 100
    assert bighmm("sample", runs["hmm"], "--words", "101..").status == 2


def test_defaults_of_windows(bighmm):
    for command, length, window in (("guide", 31, 32), ("distill-lm", 63, 64)):
        shown = " ".join(bighmm(command, "--help").out.replace("│", " ").split())
        assert f"{length}: with the end mark a window of {window}. (default: {length})" in shown


@pytest.mark.parametrize("command", [*OPENING, "distill", "distill-lm", "train"])
def test_every_command_with_a_model_has_a_device(bighmm, command):
    shown = " ".join(bighmm(command, "--help").out.replace("│", " ").split())
    assert ("--device" in shown and "--matmul-dtype" in shown) or command == "distill"
    assert "a GPU if there is one. (default: auto)" in shown


QUESTIONS = {
    "eval": (),
    "score": (),
    "next": ("w01",),
    "sample": ("--seed", 1),
    "fill": ("w01 ___", "--seed", 1),
    "rule": ("w01", "--must", "w05"),
    "tag": ("w01 w07",),
    "states": ("--top", 2),
    "posterior": ("w01 w07",),
}


@pytest.mark.parametrize("command", QUESTIONS)
def test_devices_of_questions(ask, bighmm, trained, command):
    asked = (command, trained, *QUESTIONS[command])
    given = ask(*asked, "--device", "cpu", stdin=b"w01 w07\n")
    assert json.dumps(given) == json.dumps(ask(*asked, stdin=b"w01 w07\n"))  # there is no GPU here
    done = bighmm(*asked, "--device", "gpu", stdin=b"w01\n")
    assert done.status == 2 and done.err.startswith("bighmm: there is no device 'gpu'")
    rounded = ask(*asked, "--matmul-dtype", "bfloat16", stdin=b"w01 w07\n")
    assert rounded != given or command in ("sample", "fill")
