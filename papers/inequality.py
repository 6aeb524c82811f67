"""Inequalities between figures of models, written as a line of text.

    ablation-b <= 0.75 * scalar
    0.9 * linear <= mlp <= 1.1 * linear
    factored:spread < 0.5 * scalar:spread + 0.5 * mlp:spread

A side is a sum of terms: a name, a number times a name, or a number. Every sign stands between
spaces, since names may contain dashes. A name may be followed by a colon and the figure to take.
"""

from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass

SIGNS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
NUMBER, NAME = r"\d+(?:\.\d+)?", r"[A-Za-z_][\w-]*"
TERM = re.compile(rf"(?:({NUMBER}) \* )?({NAME})(?::(\w+))?|({NUMBER})")


@dataclass(frozen=True)
class Term:
    factor: float
    name: str | None  # None: the term is the number `factor`
    figure: str | None = None


Lookup = Callable[[Term], float | None]
Values = list[float | None]


@dataclass(frozen=True)
class Inequality:
    text: str
    sides: tuple[tuple[Term, ...], ...]
    signs: tuple[str, ...]  # between them

    @property
    def terms(self) -> list[Term]:
        """The terms with a name."""
        return [term for side in self.sides for term in side if term.name is not None]

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(term.name for term in self.terms if term.name))

    def values(self, lookup: Lookup) -> Values:
        """The value of each side; None where `lookup` has no figure for one of its names."""
        return [_sum(side, lookup) for side in self.sides]

    def holds(self, values: Values) -> bool | None:
        """Whether the inequality holds; None if the known values do not decide it."""
        for (left, right), sign in zip(itertools.pairwise(values), self.signs, strict=True):
            if left is not None and right is not None and not SIGNS[sign](left, right):
                return False
        return None if None in values else True

    def written(self, values: Values) -> str:
        """The inequality as text, with values in place of its sides."""
        words = ["–" if value is None else f"{value:.1f}" for value in values]
        return " ".join(itertools.chain(*zip(words, (*self.signs, ""), strict=True))).rstrip()


def parse(text: str) -> Inequality:
    """The inequality in a line of text; ValueError with one sentence if it is none."""
    sides, signs = _cut(text, "<=|>=|<|>")
    if not signs:
        raise ValueError(f"{text!r} compares nothing; put <, <=, > or >= between spaces")
    return Inequality(text, tuple(map(_side, sides)), tuple(signs))


def _sum(side: tuple[Term, ...], lookup: Lookup) -> float | None:
    total = 0.0
    for term in side:
        figure = 1.0 if term.name is None else lookup(term)
        if figure is None:
            return None
        total += term.factor * figure
    return total


def _side(text: str) -> tuple[Term, ...]:
    texts, signs = _cut(text, r"[+-]")
    terms = []
    for sign, word in zip(["+", *signs], texts, strict=True):
        match = TERM.fullmatch(word.strip())
        if match is None:
            raise ValueError(f"{word.strip()!r} is neither a name, a number, nor NUMBER * NAME")
        factor, name, figure, alone = match.groups()
        size = float(factor or alone or 1)
        terms.append(Term(size if sign == "+" else -size, name, figure))
    return tuple(terms)


def _cut(text: str, signs: str) -> tuple[list[str], list[str]]:
    parts = re.split(rf"\s({signs})\s", text)
    return parts[::2], parts[1::2]
