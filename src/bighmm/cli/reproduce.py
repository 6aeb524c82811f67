"""`bighmm reproduce`: the program in `papers/` of the checkout that this package lies in."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import bighmm


def reproduce_command(argv: list[str]) -> None:
    """Print the tables of a paper and run what they lack.

    Raises ValueError where this package does not lie in a checkout.
    """
    program = _program()
    if program is None:
        raise ValueError(
            "bighmm reproduce needs a checkout of bighmm, and this package was installed without "
            "one; type pip install -e . in a checkout, then the same command again"
        )
    program.reproduce_command(argv)


def reproduce_arguments() -> list[type[Any]]:
    """The dataclass of the command's arguments; none where there is no checkout."""
    program = _program()
    return [] if program is None else [program.ReproduceArguments]


def _program() -> Any:
    """The module `papers.command` of the checkout, or None where there is none."""
    assert bighmm.__file__ is not None
    package = Path(bighmm.__file__).resolve().parent
    root = package.parents[1]
    if package != root / "src" / "bighmm" or not (root / "papers" / "command.py").is_file():
        return None
    # In front, so that no other folder `papers` is imported, that of the current folder for one.
    if sys.path[:1] != [str(root)]:
        sys.path.insert(0, str(root))
    return importlib.import_module("papers.command")
