"""Regular expressions whose letters are whole tokens.

    the (big | small)+ dog .* "."

A pattern is words with spaces between them, which stand for themselves, and signs:

    .           any token                   x*  x+  x?          any number, one or more, at most one
    [a b c]     one of these                x{3} x{2,} x{2,5}   three, at least two, two to five
    [^ a b c]   any other token             x | y               either
    "a b"       these words in this order   ( … )               what belongs together

A sign that is meant as a word is quoted or has a backslash before it. A dot inside a word is part
of the word. What a word is as token ids is for the caller to say.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from functools import reduce
from operator import add, or_

import numpy as np

from bighmm.infer.rules.automaton import Automaton

Build = Callable[[int], Automaton]  # from the size of a vocabulary
Spellings = Callable[[str], list[list[int]]]  # the ways to write a word or phrase as token ids

LARGEST_COUNT = 1000

_TOO_DEEP = "a pattern has too many signs inside one another to be read; use fewer parentheses"
_LEXEME = re.compile(
    r'\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|\{(?P<count>\d+(?:,\d*)?)\}|(?P<sign>\[\^|[()\[\]|*+?])'
    r'|(?P<word>(?:\\.|[^\s()\[\]|*+?{}"\\])+))'
)


def parse(pattern: str, spellings: Spellings) -> tuple[Build, set[int]]:
    """What builds the automaton of a pattern, and the token ids that occur in it.

    Raises ValueError with one sentence if the pattern cannot be read.
    """
    parser = _Parser(pattern, spellings)
    try:
        built = parser.either()
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if parser.kind != "end":
        raise parser.error(f"{parser.value!r} was not expected")

    def build(size: int) -> Automaton:
        try:
            return built(size)
        except RecursionError:
            raise ValueError(_TOO_DEEP) from None

    return build, parser.ids


def exactly(ids: Sequence[int], size: int) -> Automaton:
    """Accepts this one sequence. States: how much of it there is, then a dead one."""
    class_of, letters = classes_of(ids, size)
    dead = len(ids) + 1
    table = np.full((len(ids) + 2, len(letters) + 1), dead)
    table[np.arange(len(ids)), class_of[list(ids)]] = np.arange(len(ids)) + 1
    return Automaton(table, np.arange(len(ids) + 2) == len(ids), class_of)


def one_of(ids: Collection[int], others: bool, size: int) -> Automaton:
    """Accepts every single token of `ids` or, with `others`, every single one that is not."""
    class_of = np.full(size, int(others))
    class_of[list(ids)] = int(not others)
    return Automaton(np.array([[2, 1], [2, 2], [2, 2]]), np.arange(3) == 1, class_of)


def classes_of(ids: Collection[int], size: int) -> tuple[np.ndarray, dict[int, int]]:
    """A class for each token of `ids`, and one more, the last, for all others."""
    letters = {token: letter for letter, token in enumerate(dict.fromkeys(ids))}
    class_of = np.full(size, len(letters))
    class_of[list(letters)] = list(letters.values())
    return class_of, letters


class _Parser:
    """Recursive descent: either, sequence, repeated, single; each gives what builds its part."""

    def __init__(self, pattern: str, spellings: Spellings) -> None:
        self.pattern = pattern
        self.spellings = spellings
        self.place = 0
        self.ids: set[int] = set()
        self.advance()

    def error(self, reason: str) -> ValueError:
        return ValueError(f"the pattern {self.pattern!r} cannot be read: {reason}")

    def advance(self) -> None:
        """Read the next lexeme into `kind` and `value`."""
        if not self.pattern[self.place :].strip():
            self.kind, self.value = "end", ""
            return
        found = _LEXEME.match(self.pattern, self.place)
        if found is None:
            raise self.error(f"{self.pattern[self.place :].strip()[0]!r} is out of place")
        self.place = found.end()
        self.kind = str(found.lastgroup)
        self.value = found[self.kind]
        if self.kind == "sign":
            self.kind = self.value
        elif self.kind == "word" and self.value == ".":
            self.kind = "."

    def either(self) -> Build:
        parts = [self.sequence()]
        while self.kind == "|":
            self.advance()
            parts.append(self.sequence())
        return lambda size: reduce(or_, (part(size) for part in parts))

    def sequence(self) -> Build:
        parts: list[Build] = []
        while self.kind not in ("end", "|", ")"):
            parts.append(self.repeated())
        return lambda size: reduce(add, (part(size) for part in parts), exactly((), size))

    def repeated(self) -> Build:
        part = self.single()
        while self.kind in ("*", "+", "?", "count"):
            least, most = self.count()
            part = _repeat(part, least, most)
            self.advance()
        return part

    def count(self) -> tuple[int, int | None]:
        if self.kind != "count":
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[self.kind]
        least, comma, most = self.value.partition(",")
        smallest, largest = int(least), int(most or least)
        if not smallest <= largest <= LARGEST_COUNT:
            raise self.error(
                f"{{{self.value}}} must be two numbers of at most {LARGEST_COUNT}, smallest first"
            )
        return smallest, None if comma and not most else largest

    def single(self) -> Build:
        kind, value = self.kind, self.value
        if kind in ("quoted", "word"):
            found = self.spell(value)
            self.advance()
            return lambda size: reduce(or_, (exactly(ids, size) for ids in found))
        if kind == ".":
            self.advance()
            return lambda size: one_of((), True, size)
        if kind == "(":
            self.advance()
            inside = self.either()
            self.close(")")
            return inside
        if kind in ("[", "[^"):
            self.advance()
            ids = self.members()
            self.close("]")
            return lambda size: one_of(ids, kind == "[^", size)
        raise self.error(f"there is nothing before {value!r}" if value else "it ends too soon")

    def members(self) -> set[int]:
        """What stands in square brackets: words of one token each."""
        ids: set[int] = set()
        while self.kind in ("quoted", "word", "."):
            for spelling in self.spell(self.value):
                if len(spelling) != 1:
                    raise self.error(f"{self.value!r} in square brackets is not a single token")
                ids.update(spelling)
            self.advance()
        return ids

    def spell(self, word: str) -> list[list[int]]:
        found = self.spellings(re.sub(r"\\(.)", r"\1", word))
        self.ids.update(token for ids in found for token in ids)
        return found

    def close(self, sign: str) -> None:
        if self.kind != sign:
            raise self.error(f"a {sign!r} is missing")
        self.advance()


def _repeat(part: Build, least: int, most: int | None) -> Build:
    def build(size: int) -> Automaton:
        one, none = part(size), exactly((), size)
        rest = one.repeated() if most is None else none
        for _ in range(0 if most is None else most - least):
            rest = none | (one + rest)
        for _ in range(least):
            rest = one + rest
        return rest

    return build
