"""What recipes name and training cannot begin without: labels, and models to begin with.

An entry of [[prepare]] in rows.toml makes one folder, by a command line of this library to which
`--data`, `--tokenizer` and `--out` are added, or says what is to be put there by hand. Recipes need
it by naming the folder in their section [initial], other entries by naming it in their command.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from bighmm.reproduce.rows import Paper, Prepare
from bighmm.train.recipe import read_recipe

FINISHED = ("manifest.json", "result.json")  # what labels and runs have when they are complete


def named_in(recipe: Path) -> list[str]:
    """The folders that a recipe begins with."""
    return read_recipe(recipe).initial.folders()


def needs(entry: Prepare, paper: Paper) -> list[Prepare]:
    """The other entries that an entry's command names."""
    words = shlex.split(entry.command or "")
    return [other for other in paper.prepare if other is not entry and other.makes in words]


def is_there(entry: Prepare, paper: Paper) -> bool:
    folder = paper.root / entry.makes
    if entry.by_hand is not None:
        return folder.exists()
    return any((folder / name).is_file() for name in FINISHED)


def unprepared(paper: Paper, folders: Iterable[str]) -> list[Prepare]:
    """What is to be made before these folders are all there, in an order in which it can be.

    Raises ValueError with one sentence if something that is put there by hand is not there.
    """
    found: dict[str, Prepare] = {}

    def visit(entry: Prepare) -> None:
        if entry.makes in found or is_there(entry, paper):
            return
        if entry.by_hand is not None:
            raise ValueError(f"there is no {paper.root / entry.makes}; {entry.by_hand}")
        for other in needs(entry, paper):
            visit(other)
        found[entry.makes] = entry

    wanted = set(folders)
    for entry in paper.prepare:
        if entry.makes in wanted:
            visit(entry)
    return list(found.values())
