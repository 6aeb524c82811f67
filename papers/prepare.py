"""Folders and files that recipes refer to: labels, pretrained models, written text, clusters.

An entry of [[prepare]] in rows.toml describes one folder. It has a command line of bighmm that
makes the folder (`--data`, `--tokenizer` and `--out` are added), or a sentence that tells the user
what to put there. Recipes refer to folders in their sections [initial] and [mixed] and to a file of
clusters in [model], other entries in their command.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from bighmm.train.recipe import read_recipe
from papers.rows import Paper, Prepare

FINISHED = (
    "manifest.json",
    "result.json",
)  # one of these is written last, by labels, texts, and by runs


def named_in(recipe: Path) -> list[str]:
    """The folders and files that a recipe refers to."""
    found = read_recipe(recipe)
    named = (*found.initial.folders(), found.mixed.more, found.model.paths)
    return [path for path in named if path]


def needs(entry: Prepare, paper: Paper) -> list[Prepare]:
    """The other entries whose folders an entry's command names."""
    words = shlex.split(entry.command or "")
    return [other for other in paper.prepare if other is not entry and other.makes in words]


def is_there(entry: Prepare, paper: Paper) -> bool:
    """Whether the folder of an entry is complete; a file always is."""
    folder = paper.root / entry.makes
    if entry.by_hand is not None:
        return folder.exists()
    if folder.is_file():
        return True
    return any((folder / name).is_file() for name in FINISHED)


def unprepared(paper: Paper, folders: Iterable[str]) -> list[Prepare]:
    """The entries to make for these folders, each after those that it needs.

    Raises ValueError with one sentence if a folder is missing that the user has to provide.
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
