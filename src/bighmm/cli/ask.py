"""`bighmm ask`: a prompt that stays open, so that a model is loaded once for many questions.

A question is a command without the name of the model: `next the name of the --n 3`. Words that
belong to no flag are the text, with or without quotes.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bighmm.cli.common import (
    ON_ANY_DEVICE,
    AsJson,
    DeviceFlags,
    ModelPath,
    models_stay_open,
    parse,
    with_new_names,
)

if TYPE_CHECKING:
    from bighmm.cli.flags import Flag
    from bighmm.lm.protocol import LM

QUESTIONS = {  # the module of each, and whether it takes a text
    "next": ("bighmm.cli.questions", True),
    "score": ("bighmm.cli.questions", True),
    "sample": ("bighmm.cli.questions", False),
    "fill": ("bighmm.cli.fill", True),
    "rule": ("bighmm.cli.questions", True),
    "tag": ("bighmm.cli.states", True),
    "posterior": ("bighmm.cli.states", True),
    "states": ("bighmm.cli.states", False),
    "eval": ("bighmm.cli.evaluation", False),
}
LEAVING = ("quit", "exit")
_APOSTROPHE = re.compile(r"""(?<=\w)'(?=\w)|"(?:\\.|[^"\\])*"|'[^']*'""")
WORDS_SHOWN = 50  # that complete what was typed
HELP = """\
  next the name of the             the likeliest next words
  score the name of the file       log-probability; --words for every word
  sample --must file --n 5         texts, also under a rule
  fill the ___ of the file         what stands in gaps; --best, --probs
  rule the name --must file        how likely a rule is to hold
  tag the name of the file         the likeliest states of a text
  posterior the name               how likely each state is
  states --word file               what states stand for
  eval                             perplexity
NAME --help shows all flags of a question. Ctrl-C cancels an answer, quit or Ctrl-D ends."""


@dataclass(frozen=True)
class AskArguments:
    """Many questions to one model, which is loaded once.

    Questions are those of the other commands, one per line, without the model: next, score, sample,
    fill, rule, tag, posterior, states, eval. They come from the terminal or a pipe.
    """

    model: ModelPath
    compute: DeviceFlags = ON_ANY_DEVICE
    as_json: AsJson = False


def ask_command(argv: list[str]) -> None:
    """Answer questions until there are no more."""
    arguments = parse(AskArguments, argv, "ask")
    with models_stay_open():
        lm = arguments.compute.open(arguments.model)
        lm.predictor()  # what questions need is computed now
        asking = Asking(arguments, lm)
        if sys.stdin.isatty():
            print(f"{arguments.model} is open; `help` lists the questions", file=sys.stderr)
        failed = False
        for line in _lines(asking):
            if line.strip() in LEAVING:
                break
            failed = not asking.answer(line) or failed
    if failed and not sys.stdin.isatty():
        sys.exit(2)


class Asking:
    """Questions to one open model."""

    def __init__(self, arguments: AskArguments, lm: LM) -> None:
        self.model, self.as_json, self.lm = str(arguments.model), arguments.as_json, lm
        compute = arguments.compute
        self.device = ["--device", compute.device, "--matmul-dtype", compute.matmul_dtype]
        self._flags: dict[str, dict[str, Flag]] = {}
        self._words: list[str] | None = None

    def answer(self, line: str) -> bool:
        """Print the answer to a line; whether there was one. A mistake is told in one sentence."""
        try:
            self._answer(line)
        except (ValueError, OSError) as error:
            print(f"bighmm: {' '.join(str(error).split())}", file=sys.stderr)
            return False
        except KeyboardInterrupt:
            print("cancelled", file=sys.stderr)
            return False
        except SystemExit as end:  # of --help
            return not end.code
        finally:
            sys.stdout.flush()
        return True

    def _answer(self, line: str) -> None:
        try:
            words = shlex.split(_APOSTROPHE.sub(_as_a_letter, line))
        except ValueError as error:
            raise ValueError(
                f"the question cannot be read: {str(error).lower()}; put a text with quotes in "
                "double quotes"
            ) from None
        if not words or words[0].startswith("#"):
            return
        name, *rest = words
        if name == "help" and not rest:
            print(HELP)
            return
        if name == "help":
            name, rest = rest[0], ["--help"]
        if name not in QUESTIONS:
            close = difflib.get_close_matches(name, QUESTIONS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"ask one of {', '.join(QUESTIONS)}"
            raise ValueError(f"there is no question {name!r}; {hint}")
        module, takes_text = QUESTIONS[name]
        rest = with_new_names(rest, name)
        if "--help" in rest or "-h" in rest:
            self._run(module, name, ["--help"])
            return
        flags, text = self._divide(name, rest)
        if text and not takes_text:
            raise ValueError(f"{name} takes no text; {text[0]!r} belongs to no flag")
        positional = ["--", " ".join(text)] if text or (takes_text and name == "score") else []
        own = [] if "--device" in flags else self.device
        json = ["--json"] if self.as_json and "--json" not in flags else []
        self._run(module, name, [self.model, *flags, *own, *json, *positional])

    def _run(self, module: str, name: str, argv: list[str]) -> None:
        getattr(importlib.import_module(module), f"{name}_command")(argv)

    def _divide(self, name: str, words: list[str]) -> tuple[list[str], list[str]]:
        """Flags with their values, and the words of the text; ValueError for an unknown flag."""
        known = self.flags(name)
        flags: list[str] = []
        text: list[str] = []
        values = False  # whether words that follow are values of a flag that takes several
        left = iter(words)
        for word in left:
            flag = known.get(word.partition("=")[0]) if word.startswith("--") else None
            if word == "--":
                text += left
            elif flag is None and word.startswith("--") and len(word) > 2:
                close = difflib.get_close_matches(word, known, n=1)
                hint = f"did you mean {close[0]}?" if close else f"{name} --help lists them"
                raise ValueError(f"{name} has no flag {word}; {hint}")
            elif flag is not None:
                flags.append(word)
                values = flag.name == "--state"
                if flag.takes_value and "=" not in word:
                    value = next(left, None)
                    if value is None:
                        raise ValueError(f"{word} needs a value; {name} --help says which")
                    flags.append(value)
            elif values and word.lstrip("-").isdigit():
                flags.append(word)
            else:
                values = False
                text.append(word)
        return flags, text

    def flags(self, name: str) -> dict[str, Flag]:
        """The flags of a question, by their names."""
        from bighmm.cli.flags import flags_of_command

        if name not in self._flags:
            found = flags_of_command(name, QUESTIONS[name][0])
            self._flags[name] = {flag.name: flag for flag in found}
        return self._flags[name]

    def completions(self, before: str, typed: str) -> list[str]:
        """What may stand for `typed`, given the line before it: questions, flags or words."""
        begun = before.split()
        if not begun:
            return [f"{name} " for name in (*QUESTIONS, "help", *LEAVING) if name.startswith(typed)]
        if typed.startswith("--"):
            known = self.flags(begun[0]) if begun[0] in QUESTIONS else {}
            return [f"{name} " for name in known if name.startswith(typed)]
        if not typed:
            return []
        if self._words is None:
            tokenizer = self.lm.tokenizer
            by_words = tokenizer.kind == "words"
            every = (tokenizer.token(i) for i in range(tokenizer.size if by_words else 0))
            self._words = [word for word in every if word[0] != "<"]
        found = (word for word in self._words if word.startswith(typed))
        return [f"{word} " for _, word in zip(range(WORDS_SHOWN), found, strict=False)]


def _as_a_letter(found: re.Match[str]) -> str:
    """What was found in a line, with an apostrophe escaped, as in don't; text in quotes stays."""
    return "\\'" if found[0] == "'" else found[0]


def _lines(asking: Asking) -> Iterator[str]:
    """The lines of a pipe, or those that are typed at a prompt with history and completion."""
    if not sys.stdin.isatty():
        yield from iter(sys.stdin.readline, "")  # sys.stdin itself would be closed with this
        return
    with _history(asking.completions):
        while True:
            try:
                yield input("> ")
            except EOFError:
                print()
                return
            except KeyboardInterrupt:  # at the prompt it drops what was typed
                print()


@contextlib.contextmanager
def _history(completions: Callable[[str, str], list[str]]) -> Iterator[None]:
    """Editing of lines, with those of earlier sessions; without readline, plain input."""
    try:
        import readline
    except ImportError:  # not on every system
        yield
        return
    home = Path(os.environ.get("BIGHMM_CACHE") or "~/.cache/bighmm").expanduser()
    found: list[str] = []

    def complete(typed: str, number: int) -> str | None:
        nonlocal found
        if number == 0:
            before = readline.get_line_buffer()[: readline.get_begidx()]
            found = completions(before, typed)
        return found[number] if number < len(found) else None

    readline.set_completer(complete)
    readline.set_completer_delims(" \t\"'")
    readline.parse_and_bind("tab: complete")
    with contextlib.suppress(OSError):
        readline.read_history_file(home / "ask-history")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            home.mkdir(parents=True, exist_ok=True)
            readline.set_history_length(1000)
            readline.write_history_file(home / "ask-history")
