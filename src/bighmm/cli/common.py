"""What several commands share: parsing, the flags that open a model, and the two kinds of output.

Modules of commands import torch and all that needs it inside the functions that run them, so that
`--help` is fast.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import tyro

from bighmm.answers.objects import VERSION
from bighmm.answers.plain import finite
from bighmm.base import launch
from bighmm.base.allocator import keep_freed_memory
from bighmm.base.settings import check_at_least_one as at_least_one
from bighmm.lm.options import DEFAULT_LENGTH
from bighmm.lm.protocol import MatmulDtype

if TYPE_CHECKING:
    from rich.console import Console

    from bighmm.data.corpus import Corpus
    from bighmm.lm.hmmlm import HMMLM
    from bighmm.lm.protocol import LM

__all__ = [
    "DEFAULT_LENGTH",
    "DEVICES",
    "ON_ANY_DEVICE",
    "AsJson",
    "Device",
    "DeviceFlags",
    "Length",
    "ModelPath",
    "NoUnk",
    "Seed",
    "TopWords",
    "at_least_one",
    "check_blocks",
    "err",
    "flag_value",
    "models_stay_open",
    "note_absent",
    "note_unknown",
    "open_corpus",
    "out",
    "parse",
    "print_json",
    "printable",
    "shown_prob",
    "some_text",
    "with_new_names",
]

T = TypeVar("T")

MOST_UNKNOWN = 20  # words that are named
DEVICES = ("cpu", "cuda", "auto")
ModelPath = Annotated[
    Path,
    tyro.conf.Positional,
    tyro.conf.arg(
        metavar="MODEL", help="A model's folder, that of its run, or OWNER/NAME on the hub."
    ),
]
AsJson = Annotated[bool, tyro.conf.arg(name="json", help="One JSON object on standard output.")]
Device = Annotated[
    str,
    tyro.conf.arg(
        metavar="{" + ",".join(DEVICES) + "}", help="Where to compute; auto: a GPU if there is one."
    ),
]
Length = Annotated[
    int, tyro.conf.arg(help="Tokens after the prefix at most, the end mark not counted.")
]

NoUnk = Annotated[bool, tyro.conf.arg(help="No unknown words (<unk>).")]
Seed = Annotated[int | None, tyro.conf.arg(help="The same seed, the same texts.")]
TopWords = Annotated[int, tyro.conf.arg(help="How many words to show for a state.")]

RENAMED = {  # flags of earlier versions, and what they are called now
    "--alive": "--states-per-token",
    "--operands": "--matmul-dtype",
    "--parameters": "--parameterisation",
    "--remaining": "--length",
}
_OF_STATES = {"--words": "--top-words"}  # elsewhere --words is about the words of a text
RENAMED_IN = {"tag": _OF_STATES, "states": _OF_STATES, "posterior": _OF_STATES}


@dataclass(frozen=True)
class DeviceFlags:
    """Where the model runs."""

    device: Device = "auto"
    matmul_dtype: Annotated[
        MatmulDtype,
        tyro.conf.arg(
            help="Type of the vectors whose products are logits; auto: bfloat16 on a GPU, else "
            "float32."
        ),
    ] = "auto"

    def open(self, path: Path) -> LM:
        """The model of a folder or run, of whatever family."""
        from bighmm.lm import opening

        asked = (path, self.device, self.matmul_dtype)
        if _KEPT_OPEN is None:
            return opening.open_model(*asked)
        if asked not in _KEPT_OPEN:
            _KEPT_OPEN[asked] = opening.open_model(*asked)
        return _KEPT_OPEN[asked]

    def open_hmm(self, path: Path, what: str) -> HMMLM:
        """The model of a folder or run, for a question about `what` that only an HMM answers."""
        from bighmm.lm import opening

        return opening.as_hmm(self.open(path), path, what)


ON_ANY_DEVICE = DeviceFlags()

_KEPT_OPEN: dict[Any, Any] | None = None


@contextlib.contextmanager
def models_stay_open() -> Iterator[None]:
    """Commands that run within it open each model, and the corpus of a run, once."""
    global _KEPT_OPEN
    before = _KEPT_OPEN
    _KEPT_OPEN = {} if before is None else before
    try:
        yield
    finally:
        _KEPT_OPEN = before


def keep_memory(device: str) -> None:
    """On a CPU, let the process keep what it frees, for a command that reads a whole text and ends.

    Within `models_stay_open` the process goes on, so nothing is changed there.
    """
    from bighmm.lm.opening import find_device

    if _KEPT_OPEN is None and find_device(device).type == "cpu":
        keep_freed_memory()


def open_corpus(path: Path, data: str | None) -> Corpus:
    """The corpus `data` in the tokens of a model; without it, the one its run was trained on."""
    from bighmm.lm import opening

    if _KEPT_OPEN is None:
        return opening.corpus_for(path, data)
    if (path, data) not in _KEPT_OPEN:
        _KEPT_OPEN[path, data] = opening.corpus_for(path, data)
    return _KEPT_OPEN[path, data]


def with_new_names(argv: list[str], command: str = "") -> list[str]:
    """The arguments, with flags of earlier versions under their present names."""
    found, renamed = [], RENAMED | RENAMED_IN.get(command, {})
    for word in argv:
        name, equals, value = word.partition("=")
        found.append(renamed[name] + equals + value if name in renamed else word)
    for i, word in enumerate(found):
        if word == "--support=free":
            found[i] = "--support=per-token"
        if word == "free" and i and found[i - 1] == "--support":
            found[i] = "per-token"
    return found


def parse(arguments: type[T], argv: list[str], command: str) -> T:
    """The arguments of a command; wrong ones end the program with status 2."""
    config = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)
    if _KEPT_OPEN is None or "--help" in argv:
        return tyro.cli(arguments, args=argv, prog=f"bighmm {command}", config=config)
    said = io.StringIO()
    try:  # at a prompt one sentence is better than a box
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            return tyro.cli(arguments, args=argv, prog=command, config=config)
    except SystemExit:
        raise ValueError(f"{_reason(said.getvalue())}; {command} --help says more") from None


def _reason(box: str) -> str:
    """What the parser says is wrong, without the box around it: between its first two rules."""
    lines = [line.strip(" |\u2502") for line in box.splitlines()]
    parts = " ".join("\n" if re.fullmatch(r"[-\u2500]{3,}", line) else line for line in lines)
    return " ".join(parts.split("\n")[1].split()) if "\n" in parts else "the flags cannot be read"


def flag_value(argv: list[str], name: str) -> str | None:
    """The value of a flag on which the other flags depend, found before they are parsed."""
    for i, word in enumerate(argv):
        if word == name and i + 1 < len(argv):
            return argv[i + 1]
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    return None


def check_blocks(argv: list[str]) -> None:
    """Raises ValueError for a --blocks that is neither a number nor words.

    The parser would list the types that it tried.
    """
    for start in range(len(argv)):
        value = flag_value(argv[start : start + 2], "--blocks")
        if value not in (None, "words") and not re.fullmatch(r"[+-]?\d+", value or ""):
            raise ValueError(f"blocks must be a number of at least 1, or words, not {value!r}")


def print_json(value: Mapping[str, Any]) -> None:
    """One JSON object on one line of standard output, with the version of the form.

    null stands where a number is not finite.
    """
    found = {"version": VERSION, **finite(value)}
    print(json.dumps(found, ensure_ascii=False, allow_nan=False))


def out() -> Console:
    """Standard output, for people."""
    from rich.console import Console

    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def err() -> Console:
    """Standard error, for people."""
    from rich.console import Console

    quiet = not launch.is_first()  # of several processes the first one speaks
    return Console(stderr=True, highlight=False, soft_wrap=not sys.stderr.isatty(), quiet=quiet)


def some_text(text: str, what: str) -> str:
    """The text; ValueError if it is blank."""
    if not text.strip():
        raise ValueError(f"{what} is empty; give at least one word")
    return text


def note_unknown(lm: LM, words: list[str]) -> None:
    """Say on standard error which words of what was asked the model does not know."""
    if not words or lm.tokenizer.unknown is None:
        return
    mark = lm.tokenizer.token(lm.tokenizer.unknown)
    shown = ", ".join(map(repr, words[:MOST_UNKNOWN]))
    more = f" and {len(words) - MOST_UNKNOWN:,} more" if len(words) > MOST_UNKNOWN else ""
    print(f"unknown to the model, read as {mark}: {shown}{more}", file=sys.stderr)


def note_absent(lm: LM, phrases: Sequence[str]) -> None:
    """Say on standard error which phrases that must not occur cannot occur anyway."""
    from bighmm.data.tokenizers import unknown_words

    words = [word for phrase in phrases for word in unknown_words(lm.tokenizer, phrase)]
    if words:
        shown = ", ".join(map(repr, words[:MOST_UNKNOWN]))
        print(f"unknown to the model, so --not changes nothing: {shown}", file=sys.stderr)


def shown_prob(prob: float) -> str:
    """A probability for people: four places, or as many as it takes to see two digits."""
    return f"{prob:.4f}" if prob >= 0.001 or prob == 0 else f"{prob:.1e}"


def printable(words: list[str]) -> str:
    """Words for a table of people: on one line, with control characters and markup escaped."""
    from rich.markup import escape

    return escape("  ".join(repr(word)[1:-1] for word in words))
