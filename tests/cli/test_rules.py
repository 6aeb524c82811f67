"""`bighmm sample` and `bighmm next` under a rule."""

import re

import pytest

from bighmm.cli.rules import RuleFlags
from bighmm.lm.hmmlm import HMMLM

RULE = ("--must", "w01 w07", "--must", "w03", "--not", "w09", "--ends", "w05", "--words", "6..9")


def texts_of(found):
    return [one["text"] for one in found["texts"]]


@pytest.fixture(scope="module")
def lm(trained):
    return HMMLM.from_pretrained(trained / "model")


def test_sample(ask, bighmm, trained):
    found = ask("sample", trained, *RULE, "--n", 20, "--seed", 1, "--prefix", "w02")
    assert len(texts_of(found)) == 20 and len(set(texts_of(found))) > 10
    for text in texts_of(found):
        first, *words = text.split()
        assert first == "w02" and 6 <= len(words) <= 9 and words[-1] == "w05"
        assert "w01 w07" in text and "w03" in words and "w09" not in words
    shown = bighmm("sample", trained, *RULE, "--n", 20, "--seed", 1, "--prefix", "w02").out
    assert shown == "".join(f"{text}\n" for text in texts_of(found))


def test_sample_in_order_with_a_pattern(ask, trained):
    order = ("--must", "w03", "--must", "w02", "--in-order", "--starts", "w01")
    for text in texts_of(ask("sample", trained, *order, "--length", 8, "--n", 10)):
        words = text.split()
        assert words[0] == "w01" and len(words) <= 8
        assert "w02" in words[words.index("w03") :]
    pattern = ("--regex", "(w01 | w02) .{2} w04+", "--temperature", 0.5)
    for text in texts_of(ask("sample", trained, *pattern, "--n", 10)):
        assert re.fullmatch(r"w0[12] \S+ \S+( w04)+", text)


def test_sample_by_letters(ask, trained):
    for text in texts_of(ask("sample", trained, "--text", "w0[123]( w[01][0-9]){2,4}", "--n", 10)):
        assert re.fullmatch("w0[123]( w[01][0-9]){2,4}", text)


def test_a_schema_that_no_words_can_spell(bighmm, trained, tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "boolean"}')
    said = bighmm("sample", trained, "--schema", schema).err
    assert "no sequence of tokens can satisfy the rule JSON schema" in said
    assert "No such file" in bighmm("sample", trained, "--schema", tmp_path / "none.json").err
    schema.write_bytes(b'{"type": "\xff"}')
    said = bighmm("sample", trained, "--schema", schema).err
    assert said == f"bighmm: the schema {schema} is not UTF-8 at byte 10\n"


@pytest.mark.parametrize("command", ["next", "sample", "rule", "fill"])
def test_words_that_cannot_occur_anyway(bighmm, trained, command):
    more = ["___ w01"] if command == "fill" else ["--length", 9]
    done = bighmm(command, trained, *more, "--not", "w03 zorblax")
    assert done.status == 0, done.err
    assert "unknown to the model, so --not changes nothing: 'zorblax'\n" in done.err


def test_a_pattern_without_an_unknown_word(bighmm, trained):
    assert bighmm("sample", trained, "--regex", "w01 [^zorblax]").status == 0
    done = bighmm("sample", trained, "--regex", "w01 .*ing")
    assert done.status == 2 and "'ing' of a rule is not in the model's vocabulary" in done.err
    assert "given as `text` (--text)" in done.err


def test_texts_that_are_empty(bighmm, trained):
    done = bighmm("sample", trained, "--length", 0, "--n", 2)
    assert done.out == "\n\n" and "2 of them are empty; --words 1.. asks for words" in done.err
    assert bighmm("sample", trained, "--words", "1..2").err == ""


def test_next(ask, lm, trained):
    asked = ("--must", "w03", "--words", "..2")
    found = ask("next", trained, "w01", *asked, "--n", 50)["next"]
    assert sum(row["prob"] for row in found) == pytest.approx(1, abs=1e-4)
    expected = lm.next_token("w01", lm.rule(must="w03", words=(0, 2)), 2)
    for row in found:
        assert row["log_prob_next"] == pytest.approx(float(expected[lm.encode(row["word"])[0]]))
    assert "<eos>" not in [row["word"] for row in found]
    for name in ("--length", "--remaining"):  # the second is an old name of the first
        (only,) = ask("next", trained, "--must", "w03", name, 1)["next"]
        assert only["word"] == "w03"
    default = ask("next", trained, "w01", "--must", "w03")["next"]
    assert default == ask("next", trained, "w01", "--must", "w03", "--length", 100)["next"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [("8..12", (8, 12)), ("8..", (8, None)), ("..12", (0, 12)), ("8", (8, 8))],
)
def test_numbers_of_words(lm, words, expected):
    flags = RuleFlags(words=words)
    assert flags.given and flags.asked().of(lm.tokenizer) == lm.rule(words=expected)
    assert RuleFlags().asked().of(lm.tokenizer) is None and not RuleFlags().given


@pytest.mark.parametrize("command", ["sample", "next"])
@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (["--must", "w01 nothing"], "the word 'nothing' of a rule is not in the model's vocab"),
        (["--must", " "], "a phrase of a rule is empty"),
        (["--words", "9..3"], "--words is '9..3'; the smaller number comes first"),
        (["--words", "few"], "--words is 'few'; it must be like 8..12"),
        (["--words", "99999999999"], "a rule can count to 10000 tokens, not to 99999999999"),
        (["--regex", "(w01"], "the pattern '(w01' cannot be read"),
        (["--regex", "w01{2,0}"], "smallest first"),
        (["--must", "w01", "--not", "w01"], "no sequence of tokens can satisfy the rule"),
        (["--must", "w01 w02 w03", "--words", "..2"], "no sequence of tokens can satisfy the rule"),
        (["--must", "w01 w02 w03", "--length", "2"], "needs at least 3 tokens, but at most 2"),
        (["--words", "101.."], "needs at least 101 tokens, but at most 100"),
    ],
)
def test_what_is_refused(bighmm, trained, command, asked, said):
    done = bighmm(command, trained, *asked)
    assert done.status == 2 and done.out == "" and said in done.err
    assert done.err.startswith("bighmm: ") and done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (-1, "a text has at least 0 tokens"),
        (10**11, "under a rule a text has at most 10000 tokens"),
    ],
)
def test_how_many_tokens_there_can_be(bighmm, trained, asked, said):
    said = f"bighmm: {said} after its prefix, not {asked}\n"
    assert bighmm("sample", trained, "--not", "w01", "--length", asked).err == said
    assert bighmm("next", trained, "--not", "w01", "--length", asked).err == said
    assert bighmm("next", trained, "--not", "w01", "--remaining", asked).err == said


def test_a_rule_needs_an_hmm(bighmm, text, tmp_path):
    run = tmp_path / "ngram"
    assert bighmm("train", "--family", "ngram", "--data", text, "--out", run).status == 0
    for command in ("sample", "next"):
        done = bighmm(command, run, "--must", "w01")
        assert done.status == 2
        assert "is not a hidden Markov model, so it has no" in done.err
