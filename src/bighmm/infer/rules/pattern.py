"""Regular expressions over tokens, parsed and compiled to automata.

    the (big | small)+ dog .* "."

A pattern has words, separated by spaces, and signs:

    .           any token                   x*  x+  x?          any number, one or more, at most one
    [a b c]     one of these                x{3} x{2,} x{2,5}   three, at least two, two to five
    [^ a b c]   any other token             x | y               x or y
    "a b"       these words in this order   ( … )               a group

A sign that is meant as a word must be quoted or have a backslash before it. A dot inside a word is
part of the word. The caller says which token ids a word has; one without any cannot occur, so it
may stand in [^ …] only. What is written as in expressions over characters is refused, since it
would mean something else here: `\\w`, `the.*file`, `[a-z]`, `^the`, `.*?`, `(?:a|b)`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from operator import add, or_
from typing import Any

from bighmm.infer.rules.automaton import Automaton
from bighmm.infer.rules.phrases import any_of, exactly, one_of

Build = Callable[[int], Automaton]  # the automaton for a vocabulary of a given size
Spellings = Callable[[str], list[list[int]]]  # all sequences of token ids of a word or phrase

LARGEST_COUNT = 1000  # in {…}
REPETITIONS = ("*", "+", "?", "count")
FOR_LETTERS = "an expression over letters is given as `text` (--text)"


@dataclass(frozen=True)
class Part:
    """A part of a pattern: the function that builds its automaton.

    sequences: all sequences of token ids that match it, if it is made of words only.
    """

    build: Build
    sequences: list[list[int]] | None = None

    @staticmethod
    def of(sequences: list[list[int]]) -> Part:
        return Part(lambda size: any_of(sequences, size), sequences)


class UnknownWord(ValueError):
    """A word has no token ids, so it cannot occur in any text."""


_TOO_DEEP = "a pattern has too many signs inside one another to be read; use fewer parentheses"
_LEXEME = re.compile(
    r'\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|\{(?P<count>\d+(?:,\d*)?)\}|(?P<sign>\[\^|[()\[\]|*+?])'
    r'|(?P<word>(?:\\.|[^\s()\[\]|*+?{}"\\])+))'
)


def parse(pattern: str, spellings: Spellings) -> tuple[Build, set[int]]:
    """The function that builds the automaton of a pattern, and the token ids in the pattern.

    Raises ValueError with one sentence if the pattern is malformed or nested too deeply; so does
    the function.
    """
    parser = _Parser(pattern, spellings)
    try:
        build_nested = parser.alternatives().build
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if parser.kind != "end":
        raise parser.error(f"{parser.value!r} was not expected")

    def build(size: int) -> Automaton:
        try:
            return build_nested(size)
        except RecursionError:
            raise ValueError(_TOO_DEEP) from None

    return build, parser.ids


class _Parser:
    """A recursive descent parser.

    `alternatives`, `sequence`, `repeated` and `single` parse one level of the grammar each, and
    return the function that builds the automaton of the part they have read.
    """

    def __init__(self, pattern: str, spellings: Spellings) -> None:
        self.pattern = pattern
        self.spellings = spellings
        self.place = 0
        self.ids: set[int] = set()
        self.advance()

    def error(self, reason: str) -> ValueError:
        shown = repr(self.pattern).replace("\\\\", "\\")  # backslashes as they were typed
        return ValueError(f"the pattern {shown} cannot be read: {reason}")

    def advance(self) -> None:
        """Read the next lexeme into `kind` and `value`."""
        if not self.pattern[self.place :].strip():
            self.kind, self.value = "end", ""
            return
        match = _LEXEME.match(self.pattern, self.place)
        if match is None:
            raise self.error(f"{self.pattern[self.place :].strip()[0]!r} is out of place")
        self.glued = match.start() > 0 and match.start() == match.start(str(match.lastgroup))
        self.place = match.end()
        self.kind = str(match.lastgroup)
        self.value = match[self.kind]
        if self.kind == "sign":
            self.kind = self.value
        elif self.kind == "word" and self.value == ".":
            self.kind = "."
        elif self.kind == "word":
            self.check_word(self.value, self.pattern[self.place : self.place + 1])

    def check_word(self, word: str, following: str) -> None:
        """Raises ValueError for a word that is written as in an expression over characters.

        following: the character directly after it.
        """
        wrong, instead = "", ""
        if shorthand := re.search(r"\\[A-Za-z0-9]", word):
            wrong, instead = shorthand[0], "a dot is any word"
        elif len(word) > 1 and word.endswith(".") and following and following in "*+?{":
            wrong = word + following
            instead = (
                f"put spaces between words and signs, as in {word[:-1]} .{following}, or quote the "
                f'word: "{word}"{following}'
            )
        elif re.fullmatch(r".-.", word) and following in ("]", "-"):
            wrong, instead = f"[{word}]", "square brackets hold words, as in [old new]"
        elif len(word) > 1 and (word[0] == "^" or word[-1] == "$"):
            wrong, instead = word, "a pattern is of the whole text anyway, so leave out ^ and $"
        if wrong:
            raise self.error(
                f"{wrong} is written as for letters, but it is about whole words: {instead}; "
                f"{FOR_LETTERS}"
            )

    def alternatives(self) -> Part:
        """x | y | …"""
        parts = [self.sequence()]
        while self.kind == "|":
            self.advance()
            parts.append(self.sequence())
        words = [ids for part in parts for ids in part.sequences or ()]
        others = [part for part in parts if part.sequences is None]
        if not others:
            return Part.of(words)
        parts = [*others, *([Part.of(words)] if words else [])]
        return Part(lambda size: balanced(or_, [part.build(size) for part in parts]))

    def sequence(self) -> Part:
        """x y …, possibly empty; words that follow each other are one part."""
        parts: list[Part] = []
        while self.kind not in ("end", "|", ")"):
            part = self.repeated()
            before = parts[-1].sequences if parts else None
            if before and part.sequences and len(before) == len(part.sequences) == 1:
                parts[-1] = Part.of([before[0] + part.sequences[0]])
            else:
                parts.append(part)
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return Part.of([[]])
        return Part(lambda size: balanced(add, [part.build(size) for part in parts]))

    def repeated(self) -> Part:
        """x, possibly followed by one of the signs * + ? {…}.

        Two of them would mean something else than over letters, where `+?` and `*+` are about the
        order in which matches are tried.
        """
        part = self.single()
        if self.kind in REPETITIONS:
            least, most = self.count()
            part = _repeat(part, least, most)
            self.advance()
            if self.kind in REPETITIONS:
                raise self.error(
                    "two signs of repetition follow each other; leave one out, or put the first "
                    f"with what it repeats in parentheses; {FOR_LETTERS}"
                )
        return part

    def count(self) -> tuple[int, int | None]:
        """The least and the largest number of repetitions of the current sign; None: no limit."""
        if self.kind != "count":
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[self.kind]
        first, comma, second = self.value.partition(",")
        least, most = int(first), int(second or first)
        if not least <= most <= LARGEST_COUNT:
            raise self.error(
                f"{{{self.value}}} must be two numbers of at most {LARGEST_COUNT}, smallest first"
            )
        return least, None if comma and not second else most

    def single(self) -> Part:
        """A word, a phrase in quotes, a dot, a group, or square brackets."""
        kind, value = self.kind, self.value
        if kind in ("quoted", "word"):
            spellings = self.spell(value)
            self.advance()
            return Part.of(spellings)
        if kind == ".":
            self.advance()
            return Part(lambda size: one_of((), True, size))
        if kind == "(":
            self.advance()
            if self.kind == "?" and self.glued:
                raise self.error(
                    "(? is written as for letters; a group has parentheses alone, as in (old | "
                    f"new); {FOR_LETTERS}"
                )
            inside = self.alternatives()
            self.close(")")
            return inside
        if kind in ("[", "[^"):
            self.advance()
            ids = self.members(kind == "[^")
            self.close("]")
            return Part(lambda size: one_of(ids, kind == "[^", size))
        raise self.error(f"there is nothing before {value!r}" if value else "it ends too soon")

    def members(self, excluded: bool) -> set[int]:
        """The tokens in square brackets; ValueError for a word that is not a single token.

        excluded: whether they are those that may not stand there. Unknown words do not anyway.
        """
        ids: set[int] = set()
        while self.kind in ("quoted", "word", "."):
            try:
                spellings = self.spell(self.value)
            except UnknownWord:
                if not excluded:
                    raise
                spellings = []
            for spelling in spellings:
                if len(spelling) != 1:
                    raise self.error(f"{self.value!r} in square brackets is not a single token")
                ids.update(spelling)
            self.advance()
        return ids

    def spell(self, word: str) -> list[list[int]]:
        """All sequences of token ids of a word, whose backslashes are removed first."""
        try:
            spellings = self.spellings(re.sub(r"\\(.)", r"\1", word))
        except UnknownWord as error:
            # As in f.le and .*ing, which have signs for letters.
            before = self.pattern[: self.place - len(word)][-1:]
            if self.kind == "word" and ("." in word or before in (*"*+?}",)):
                raise UnknownWord(f"{error}; {FOR_LETTERS}") from None
            raise
        self.ids.update(token for ids in spellings for token in ids)
        return spellings

    def close(self, sign: str) -> None:
        """Read a closing sign; ValueError if it is missing."""
        if self.kind != sign:
            raise self.error(f"a {sign!r} is missing")
        self.advance()


def _repeat(part: Part, least: int, most: int | None) -> Part:
    """`part` at least `least` times, and at most `most` times unless that is None."""

    def build(size: int) -> Automaton:
        one, none = part.build(size).minimal(), exactly((), size)
        rest = one.repeated() if most is None else _power(none | one, most - least, none)
        return _power(one, least, none) + rest

    return Part(build)


def _power(one: Automaton, count: int, none: Automaton) -> Automaton:
    """An automaton `count` times after itself, by repeated squaring."""
    result = none
    for digit in f"{count:b}":
        result = result + result
        if digit == "1":
            result = result + one
    return result


def balanced(combine: Callable[[Any, Any], Any], parts: list[Any]) -> Any:
    """All parts combined in their order, in pairs of about equal size: cheaper than one by one."""
    while len(parts) > 1:
        pairs = [combine(a, b) for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + parts[len(pairs) * 2 :]
    return parts[0]
