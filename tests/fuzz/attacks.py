"""All kinds of attack, by name, each with its share of the cases."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from . import arguments, expressions, files, models, rules, texts
from .originals import Originals
from .outcome import Case, Say, Work

Attack = Callable[[Originals, Case, random.Random, Path, Say], str]
ATTACKS: dict[str, tuple[Attack, float]] = {
    "files": (files.attack, 0.5),
    "texts": (texts.attack, 0.1),
    "arguments": (arguments.attack, 0.2),
    "models": (models.attack, 0.15),
    "rules": (rules.attack, 0.1),
    "expressions": (expressions.attack, 0.1),
}


def work_of(originals: Originals) -> Work:
    """The function that runs any case."""

    def work(case: Case, draw: random.Random, place: Path, say: Say) -> str:
        return ATTACKS[case.kind][0](originals, case, draw, place, say)

    return work


def prepare(kinds: Sequence[str]) -> None:
    """What takes long and is needed by many cases, before they are forked."""
    if "texts" in kinds:
        for unit, kind in itertools.product(texts.UNITS, texts.PACK):
            texts.bomb(unit, kind)
    if "arguments" in kinds:
        arguments.every_command()


def cases_of(kinds: Sequence[str], number: int, seed: int) -> list[Case]:
    """About `number` cases of these kinds by their shares, at least one of each.

    The kinds take turns, so that those of an interrupted run are of all kinds as well.
    """
    total = sum(ATTACKS[kind][1] for kind in kinds)
    found = []
    for kind in kinds:
        count = max(1, round(number * ATTACKS[kind][1] / total))
        found += [((i + 0.5) / count, Case(kind, seed, i)) for i in range(count)]
    return [case for _, case in sorted(found, key=lambda one: one[0])]
