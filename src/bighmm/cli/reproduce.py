"""`bighmm reproduce`: the program in `papers/` of the checkout that this package lies in."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import bighmm


def reproduce_command(argv: list[str]) -> None:
    """Print the tables of a paper and run what they lack.

    Raises ValueError where this package does not lie in a checkout.
    """
    assert bighmm.__file__ is not None
    package = Path(bighmm.__file__).resolve().parent
    root = package.parents[1]
    if package != root / "src" / "bighmm" or not (root / "papers" / "command.py").is_file():
        raise ValueError(
            "bighmm reproduce needs a checkout of bighmm, and this package was installed without "
            "one; type pip install -e . in a checkout, then the same command again"
        )
    # In front, so that no other folder `papers` is imported, that of the current folder for one.
    sys.path.insert(0, str(root))
    importlib.import_module("papers.command").reproduce_command(argv)
