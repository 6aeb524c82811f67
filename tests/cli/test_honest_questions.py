"""What questions say of unknown words, of patterns, and of flags that do nothing."""

import csv
import io
import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from bighmm.cli import questions
from bighmm.lm.hmmlm import HMMLM


@pytest.fixture
def lm(trained):
    return HMMLM.from_pretrained(trained / "model")


def test_a_text_is_evaluated_whole(ask, bighmm, trained, text, lm, tmp_path):
    lines = ["w01 w07 w09", "w02 zebra", "", "w03 yak w04 zebra"]
    path = tmp_path / "mine.txt"
    path.write_text("\n".join(lines) + "\n")
    found = ask("eval", trained, "--data", path)
    rows = [lm.encode(line + "\n") for line in lines if line]
    each = [lm.hmm().token_log_probs([row])[0] for row in rows]
    total = sum(float(one.sum()) for one in each)
    assert found["split"] == "all" and found["tokens"] == sum(map(len, rows)) == 12
    assert found["log_prob"] == pytest.approx(total, rel=1e-5)
    assert found["unigram_perplexity"] is None and found["version"] == 1
    of_unknown = sum(
        float(one[torch.tensor(row) == lm.tokenizer.unknown].sum())
        for one, row in zip(each, rows, strict=True)
    )
    assert found["unknown_tokens"] == 3
    assert found["perplexity_known"] == pytest.approx(np.exp(-(total - of_unknown) / 9), rel=1e-4)
    shown = bighmm("eval", trained, "--data", path).out
    assert "unknown words: 3 tokens (25.0%); the others have perplexity" in shown
    assert shown.startswith("whole-text perplexity ")
    # Carried over end marks, against one pass over the stream.
    carried = ask("eval", trained, "--data", path, "--carry")
    hmm, stream = lm.hmm(), [token for row in rows for token in row]
    each = replace(hmm, reset=False).token_log_probs([stream])[0]
    known = each[torch.tensor(stream) != lm.tokenizer.unknown]
    assert carried["perplexity_known"] == pytest.approx(float((-known.mean()).exp()), rel=1e-4)
    # A split divides it as for training, and without --data it is the test split of the run's text.
    assert ask("eval", trained, "--data", text, "--split", "test") == ask("eval", trained)
    assert ask("eval", trained, "--data", text)["tokens"] == 300 * 7


def test_unknown_words_are_named(bighmm, ask, trained):
    for asked in (
        ("next", trained, "w01 zebra yak zebra"),
        ("sample", trained, "--prefix", "w01 zebra yak"),
        ("fill", trained, "zebra ___ yak"),
        ("tag", trained, "zebra w01 yak"),
        ("posterior", trained, "zebra w01 yak"),
        ("score", trained, "zebra w01 yak"),
        ("rule", trained, "zebra yak", "--must", "w01"),
    ):
        done = bighmm(*asked)
        assert done.status == 0
        assert done.err == "unknown to the model, read as <unk>: 'zebra', 'yak'\n"
        found = ask(*asked)
        assert (found["lines"][0] if asked[0] == "score" else found)["unknown"] == ["zebra", "yak"]
    assert bighmm("next", trained, "w01 <unk>").err == ""


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("w01.*w02", "w01.* is written as for letters"),
        ("w01.*w02", "as in w01 .*"),
        ("\\w+ w01", "\\w is written as for letters, but it is about whole words: a dot is any"),
        ("w01 \\d", "\\d is written as for letters"),
        ("[a-z] w01", "square brackets hold words, as in [old new]"),
        ("^w01 .*", "leave out ^ and $"),
        (".* w01$", "leave out ^ and $"),
    ],
)
def test_patterns_written_as_for_letters(bighmm, trained, pattern, said):
    done = bighmm("sample", trained, "--regex", pattern)
    assert done.status == 2 and said in done.err and "(--text)" in done.err
    assert done.err.count("\n") == 1


def test_patterns_that_mean_something(ask, trained):
    for pattern in ('w01 .* "w03"?', "(w01|w02) .{1,2}", "[w01 w02]+ .*", '"w01"* w02'):
        assert ask("sample", trained, "--regex", pattern, "--n", 2)["texts"]


def test_help_has_the_signs_of_patterns(bighmm):
    shown = " ".join(bighmm("sample", "--help").out.replace("│", " ").split())
    assert "x+ one or more" in shown and "For letters: --text" in shown


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["next", "w01", "--length", 5], "--length is how long the text may become under a rule"),
        (["sample", "--must", "w01", "--in-order"], "in_order puts two or more phrases"),
        (["sample", "--in-order"], "in_order puts two or more phrases"),
        (["sample", "--n", 0], "n must be at least 1, not 0"),
        (["sample", "--temperature", -1], "temperature must be finite and at least 0, not -1.0"),
        (["sample", "--top-k", 0], "top_k must be at least 1, not 0"),
        (["sample", "--top-p", 0], "top_p must be above 0 and at most 1, not 0.0"),
        (["next", "--n", 0], "n must be at least 1, not 0"),
        (["eval", "--data", ""], "the name of the corpus is empty"),
        (["states", "--data", " "], "the name of the corpus is empty"),
        (["states", "--state", 999999], "there is no state 999999: states go from 0 to 23"),
        (["states", "--word", "zebra"], "the word 'zebra' is not in the model's vocabulary"),
        (["states", "--block", 9], "there is no block 9: blocks go from 0 to 3"),
        (["states", "--csv", "--json"], "--csv and --json are two forms"),
        (["rule"], "there is no rule; give --must"),
    ],
)
def test_mistakes_name_what_is_wrong(bighmm, trained, asked, said):
    command, *rest = asked
    done = bighmm(command, trained, *rest)
    assert done.status == 2 and said in done.err and done.err.count("\n") == 1


def test_a_state_that_is_not_there_is_refused_before_a_corpus_is_read(bighmm, trained, monkeypatch):
    monkeypatch.setattr("bighmm.data.corpus.prepare", lambda *a, **k: pytest.fail("it was read"))
    assert bighmm("states", trained, "--state", 999).status == 2


def test_a_long_schema_is_not_repeated(bighmm, trained, tmp_path):
    path = tmp_path / "schema.json"
    path.write_text(json.dumps({"not": {}, "description": "x" * 5000}))
    done = bighmm("sample", trained, "--schema", path)
    assert done.status == 2 and len(done.err) < 300


def test_not_with_an_unknown_word_holds_anyway(ask, trained):
    for asked in (["--not", "zebra"], ["--not", "w01 zebra", "--not", "w02"]):
        plain = ["--words", "1.."] if len(asked) == 2 else ["--not", "w02", "--words", "1.."]
        with_unknown = ask("next", trained, *asked, "--words", "1..")
        assert with_unknown["next"] == ask("next", trained, *plain)["next"]


def test_an_empty_prefix_is_the_beginning(ask, trained):
    for empty in ("", " ", "\n"):
        assert ask("next", trained, empty) == ask("next", trained)


def test_words_of_scores(bighmm, ask, trained, lm):
    (line,) = ask("score", trained, "w01 zebra", "--words")["lines"]
    wanted = lm.hmm().token_log_probs([lm.encode("w01 zebra\n")])[0].tolist()
    assert [word["word"] for word in line["words"]] == ["w01", "<unk>", "<eos>"]
    assert [word["log_prob_next"] for word in line["words"]] == pytest.approx(wanted)
    assert [word["is_unknown"] for word in line["words"]] == [False, True, False]
    shown = bighmm("score", trained, "w01 zebra", "--words").out.splitlines()
    assert len(shown) == 4 and shown[2] == f"  {line['words'][1]['surprisal_bits']:.2f}\t<unk>"


def test_lines_are_answered_as_they_come(monkeypatch, trained, capsys):
    """Before the next lines are read, the answers of those before them have been printed."""

    class Slow(io.RawIOBase):
        def __init__(self):
            self.parts = iter([b"w01\nw02", b"\n", b"w03\n", b""])
            self.printed = []

        def read1(self, size):
            self.printed.append(capsys.readouterr().out.count("\n"))
            return next(self.parts)

    slow = Slow()
    monkeypatch.setattr("sys.stdin", type("Stdin", (), {"buffer": slow})())
    questions.score_command([str(trained)])
    assert slow.printed == [0, 1, 1, 1]


@pytest.mark.parametrize("at", range(1, 8))
def test_characters_that_are_cut_by_a_read(at):
    content = "é\nzü\n".encode()

    class Parts(io.BytesIO):
        parts = iter([content[:at], content[at:], b""])

        def read1(self, size=-1):
            return next(self.parts)

    found = [line for lines in questions._lines_as_they_come(Parts()) for line in lines]
    assert found == ["é", "zü"]


def test_sampling_among_the_likeliest(ask, trained, lm):
    texts = ask("sample", trained, "--top-k", 1, "--n", 3)["texts"]
    cold = ask("sample", trained, "--temperature", 0, "--n", 3)["texts"]
    assert texts == cold
    drawn = ask("sample", trained, "--length", 1, "--n", 300, "--top-k", 3, "--seed", 1)["texts"]
    best = lm.hmm().next_token([[]])[0].topk(3).indices.tolist()
    likeliest = {"" if i == lm.tokenizer.end else lm.tokenizer.token(i) for i in best}
    assert {one["text"] for one in drawn} == likeliest
    narrow = ask("sample", trained, "--length", 1, "--n", 50, "--top-p", 0.001)["texts"]
    assert len({one["text"] for one in narrow}) == 1


@pytest.mark.parametrize("asked", [[], ["--words", "1..3"], ["--top-p", 0.9]])
def test_samples_without_unknown_words(ask, trained, lm, asked, monkeypatch):
    """In a model that hardly writes anything else."""
    hmm = lm.hmm()
    emission = hmm.emission.clone()
    unknown = lm.tokenizer.unknown
    emission[unknown] = emission[unknown] + 6
    made = type(hmm)(hmm.start, hmm.transitions, emission.contiguous(), hmm.support, hmm.end)
    monkeypatch.setattr(HMMLM, "hmm", lambda self: made)
    for flags, there in (([], True), (["--no-unk"], False)):
        texts = ask("sample", trained, "--n", 40, "--seed", 1, "--length", 20, *asked, *flags)
        assert ("<unk>" in " ".join(one["text"] for one in texts["texts"])) == there


def test_states_of_a_word_and_as_a_table(ask, bighmm, trained):
    found = ask("states", trained, "--word", "w03", "--top", 2)["states"]
    assert all(row["prob_word"] > 0 for row in found)
    shown = bighmm("states", trained, "--word", "w03", "--top", 1).out
    assert "p(state |" in shown and f"{found[0]['prob_word']:.4f}" in shown
    shown = bighmm("states", trained, "--block", 1, "--sort", "number", "--csv").out
    rows = list(csv.DictReader(io.StringIO(shown)))
    wanted = ask("states", trained, "--block", 1, "--sort", "number")["states"]
    assert [(int(row["state"]), row["word"]) for row in rows] == [
        (row["state"], word["word"]) for row in wanted for word in row["words"]
    ]
    assert {row["block"] for row in rows} == {"1"} and {row["share"] for row in rows} == {""}


def test_states_after_which_text_starts_anew(ask, bighmm, trained):
    asked = ("states", trained, "--word", "<eos>", "--top", 1)
    assert ask(*asked)["states"][0]["starts_anew"]
    assert "starts" in bighmm(*asked).out  # "text starts anew", on several lines
    (row, *_) = csv.DictReader(io.StringIO(bighmm(*asked, "--csv").out))
    assert row["starts_anew"] == "True" and float(row["prob_end"]) > 0.5


def test_words_flags_of_earlier_versions(ask, trained):
    """--words is about the words of a text; of a state it is --top-words, and still understood."""
    for asked in (("tag", trained, "w01"), ("posterior", trained, "w01"), ("states", trained)):
        assert ask(*asked, "--words", 1) == ask(*asked, "--top-words", 1)


def test_help_into_a_closed_pipe():
    """`bighmm -h | head -1` ends without a traceback."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "bighmm", "-h"], stdout=write, stderr=subprocess.PIPE, check=False
    )
    os.close(write)
    assert done.stderr == b"" and done.returncode in (0, 1)
