"""What several commands share: parsing, checks, and the two kinds of output."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, TypeVar

import tyro
from rich.console import Console

from bighmm.lm.opening import RECIPE
from bighmm.train.run import saved_recipe

T = TypeVar("T")

ModelPath = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
AsJson = Annotated[bool, tyro.conf.arg(name="json", help="One JSON object on standard output.")]


RENAMED = {  # flags of the first version, and what they are called now
    "--alive": "--states-per-token",
    "--operands": "--matmul-dtype",
    "--parameters": "--parameterisation",
}


def with_new_names(argv: list[str]) -> list[str]:
    """Arguments in which flags of the first version have the names of today."""
    found = []
    for word in argv:
        name, equals, value = word.partition("=")
        found.append(RENAMED.get(name, name) + equals + value if name in RENAMED else word)
    for i, word in enumerate(found):
        if word == "--support=free":
            found[i] = "--support=per-token"
        if word == "free" and i and found[i - 1] == "--support":
            found[i] = "per-token"
    return found


def parse(arguments: type[T], argv: list[str], command: str) -> T:
    """The arguments of a command; wrong ones end the program with status 2."""
    config = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)
    return tyro.cli(arguments, args=argv, prog=f"bighmm {command}", config=config)


def trained_on(run: Path) -> str:
    """The corpus that a run was trained on; ValueError if that is not known."""
    if not (run / RECIPE).exists():
        raise ValueError(f"{run} does not say what it was trained on; give --data")
    return saved_recipe(run)[0].corpus.data


def print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, ensure_ascii=False))


def out() -> Console:
    """Standard output, for people."""
    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def err() -> Console:
    return Console(stderr=True, highlight=False, soft_wrap=not sys.stderr.isatty())


def some_text(text: str, what: str) -> str:
    if not text.strip():
        raise ValueError(f"{what} is empty; give at least one word")
    return text


def at_least_one(number: int, name: str) -> None:
    if number < 1:
        raise ValueError(f"{name} must be at least 1, not {number}")
