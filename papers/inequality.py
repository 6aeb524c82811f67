"""Inequalities between figures of models, written as a line of text.

    ablation-b <= 0.75 * scalar
    0.9 * linear <= mlp <= 1.1 * linear
    factored:spread < 0.5 * scalar:spread + 0.5 * mlp:spread
    small or large <= 106

A side is a sum of terms: a name, a number times a name, or a number; of several terms with "or"
between them the lowest counts that is known. Every sign stands between spaces, since names may
contain dashes. A name may be followed by a colon and the figure to take.
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
Either = tuple[Term, ...]  # terms of which the lowest counts


@dataclass(frozen=True)
class Inequality:
    text: str
    sides: tuple[tuple[Either, ...], ...]
    signs: tuple[str, ...]  # between them

    @property
    def terms(self) -> list[Term]:
        """The terms with a name."""
        every = (term for side in self.sides for either in side for term in either)
        return [term for term in every if term.name is not None]

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


def _sum(side: tuple[Either, ...], lookup: Lookup) -> float | None:
    total = 0.0
    for either in side:
        figures = [(term, 1.0 if term.name is None else lookup(term)) for term in either]
        known = [term.factor * figure for term, figure in figures if figure is not None]
        if not known:
            return None
        total += min(known, key=abs)  # terms after a minus are below zero
    return total


def _side(text: str) -> tuple[Either, ...]:
    texts, signs = _cut(text, r"[+-]")
    return tuple(
        tuple(_term(word.strip(), sign) for word in either.split(" or "))
        for sign, either in zip(["+", *signs], texts, strict=True)
    )


def _term(word: str, sign: str) -> Term:
    match = TERM.fullmatch(word)
    if match is None:
        raise ValueError(f"{word!r} is neither a name, a number, nor NUMBER * NAME")
    factor, name, figure, alone = match.groups()
    size = float(factor or alone or 1)
    return Term(size if sign == "+" else -size, name, figure)


def _cut(text: str, signs: str) -> tuple[list[str], list[str]]:
    parts = re.split(rf"\s({signs})\s", text)
    return parts[::2], parts[1::2]
