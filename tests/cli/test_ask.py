"""`bighmm ask`: the questions of the commands, to a model that is loaded once."""

import json
import shlex

import pytest

from bighmm.cli import ask
from bighmm.cli.ask import QUESTIONS, AskArguments, Asking
from bighmm.cli.main import COMMANDS
from bighmm.lm import opening

ASKED = {
    "next": "w01 w07 --n 3",
    "score": "w01 w07 --words",
    "sample": "--n 2 --seed 3 --must w05 --length 8",
    "fill": "w01 ___ w09 --best --n 2",
    "rule": "w01 --must w05 --length 6",
    "tag": "w01 w07",
    "posterior": "w01 w07 --top 2",
    "states": "--sort number --state 3 5",
    "eval": "--split valid",
}


def command(name, asked, run):
    """The same question as a command; the text is one argument there."""
    words = shlex.split(asked)
    first = next((i for i, word in enumerate(words) if word.startswith("--")), len(words))
    return [name, run, *([" ".join(words[:first])] if first else []), *words[first:]]


def test_every_question_is_answered_as_by_its_command(bighmm, trained):
    """One process, one model, the same output."""
    assert set(ASKED) == set(QUESTIONS) <= set(COMMANDS)
    lines = "".join(f"{name} {asked}\n" for name, asked in ASKED.items())
    done = bighmm("ask", trained, stdin=lines.encode())
    alone = [bighmm(*command(name, asked, trained)) for name, asked in ASKED.items()]
    assert done.status == 0 and done.out == "".join(one.out for one in alone)


def test_a_model_is_opened_once(bighmm, trained, monkeypatch):
    opened = []
    really = opening.open_model

    def counted(*asked):
        opened.append(asked)
        return really(*asked)

    monkeypatch.setattr(opening, "open_model", counted)
    assert bighmm("ask", trained, stdin=b"next w01\nscore w01\ntag w01\n").status == 0
    assert len(opened) == 1
    bighmm("next", trained, "w01")
    bighmm("next", trained, "w01")
    assert len(opened) == 3  # outside of it nothing is kept


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nxt w01", "there is no question 'nxt'; did you mean next?"),
        ("next w01 --lenth 3", "next has no flag --lenth; did you mean --length?"),
        ("next w01 --n", "--n needs a value"),
        ("next w01 --n few", "Error parsing --n"),
        ("next 'w01", "the question cannot be read: no closing quotation"),
        ("fill --n 2", "Missing from fill"),
        ("fill w01", "the text has no gap"),
        ("score", "the text is empty; give at least one word"),
        ("sample w01", "sample takes no text; 'w01' belongs to no flag"),
        ("sample --must nothing", "the word 'nothing' of a rule is not in the model's vocabulary"),
    ],
)
def test_a_mistake_is_one_sentence_and_the_next_question_is_answered(bighmm, trained, line, said):
    done = bighmm("ask", trained, stdin=f"{line}\nnext w01 --n 1\n".encode())
    assert done.status == 2 and done.out.count("\n") == 1
    assert done.err.startswith("bighmm: ") and said in done.err and done.err.count("\n") == 1


def test_apostrophes_within_words(bighmm, trained):
    for text in ("w01 don't w02", '"w01 don\'t w02"'):
        done = bighmm("ask", trained, stdin=f"score {text}\n".encode())
        assert done.status == 0 and done.out.endswith("\tw01 don't w02\n"), done.err
    done = bighmm("ask", trained, stdin=b"sample --regex 'w01 (w02 | w03)' --n 1\n")
    assert done.out.split()[0] == "w01"


def test_quit_after_a_mistake(bighmm, trained):
    done = bighmm("ask", trained, stdin=b"bogus\nquit\nnext w01\n")
    assert done.status == 2 and done.out == "" and done.err.count("\n") == 1, done.err


def test_other_lines(bighmm, trained):
    done = bighmm("ask", trained, stdin=b"\n# a remark\nhelp\nnext --help\nquit\nnext w01\n")
    assert done.status == 0 and "Ctrl-D ends" in done.out and "usage: bighmm next" in done.out
    assert not done.out.rstrip().splitlines()[-1].startswith("0.")  # nothing after quit
    (line,) = bighmm("ask", trained, "--json", stdin=b"next w01 --n 2").out.splitlines()
    assert len(json.loads(line)["next"]) == 2
    unknown = bighmm("ask", trained, stdin=b"next w01 zebra --n 1\n")
    assert unknown.status == 0 and "unknown to the model, read as <unk>: 'zebra'" in unknown.err


def test_ctrl_c_cancels_the_answer_and_nothing_else(bighmm, trained, monkeypatch):
    asked = []

    def interrupted(self, module, name, argv):
        asked.append(name)
        if name == "sample":
            raise KeyboardInterrupt

    monkeypatch.setattr(Asking, "_run", interrupted)
    done = bighmm("ask", trained, stdin=b"sample\nnext w01\n")
    assert asked == ["sample", "next"] and done.err == "cancelled\n"


def test_a_prompt_with_history_and_completion(trained, monkeypatch, tmp_path):
    readline = pytest.importorskip("readline")
    typed = iter(["next w01 --n 1", KeyboardInterrupt, "score w01", EOFError])

    def type_line(prompt):
        line = next(typed)
        if isinstance(line, type):
            raise line
        return line

    monkeypatch.setenv("BIGHMM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("builtins.input", type_line)
    asking = Asking(AskArguments(trained), AskArguments(trained).compute.open(trained))
    assert asking.completions("", "ne") == ["next "]
    assert asking.completions("next ", "--n") == ["--not ", "--n ", "--no-unk "]
    assert asking.completions("next w0", "w3") == [
        f"{word} " for word in asking.lm.tokenizer.words if word.startswith("w3")
    ]
    assert asking.completions("nothing ", "--n") == [] and asking.completions("next ", "") == []
    with ask._history(asking.completions):
        assert readline.get_completer()("zz", 0) is None
    assert (tmp_path / "cache" / "ask-history").exists()
    monkeypatch.setattr(ask.sys, "stdin", type("Terminal", (), {"isatty": lambda self: True})())
    assert list(ask._lines(asking)) == ["next w01 --n 1", "score w01"]
