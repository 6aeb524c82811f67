"""Sets of characters as ranges, and their bytes in UTF-8."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import cache
from re import _constants as code  # type: ignore[attr-defined]  # has no public name
from typing import Any

Ranges = tuple[tuple[int, int], ...]  # of characters or bytes, sorted; first and last of each

ENDS_OF_LENGTH = (0x7F, 0x7FF, 0xFFFF, sys.maxunicode)  # last characters of one byte, two, …


@cache
def category(kind: Any) -> Ranges:
    """The characters of \\d, \\w, \\s and their opposites."""
    tests: dict[Any, Callable[[str], bool]] = {
        code.CATEGORY_DIGIT: str.isdecimal,
        code.CATEGORY_SPACE: str.isspace,
        code.CATEGORY_WORD: lambda character: character.isalnum() or character == "_",
    }
    opposites = {
        code.CATEGORY_NOT_DIGIT: code.CATEGORY_DIGIT,
        code.CATEGORY_NOT_SPACE: code.CATEGORY_SPACE,
        code.CATEGORY_NOT_WORD: code.CATEGORY_WORD,
    }
    if kind in opposites:
        return others(category(opposites[kind]))
    test = tests[kind]
    return merged([(c, c) for c in range(sys.maxunicode + 1) if test(chr(c))])


@cache
def members(
    items: tuple[tuple[Any, Any], ...], category: Callable[[Any], Ranges] = category
) -> Ranges:
    """The characters of square brackets, as the parser of `re` returns them.

    category: the characters of \\d, \\w and so on.
    """
    negated = items[0][0] is code.NEGATE
    found: list[tuple[int, int]] = []
    for kind, value in items[negated:]:
        if kind is code.CATEGORY:
            found += category(value)
        else:
            found.append(value if kind is code.RANGE else (value, value))
    return others(found) if negated else merged(found)


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The same characters in disjoint ranges that do not touch."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(last, found[-1][1])
        else:
            found.append((first, last))
    return tuple(found)


def others(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """All other characters."""
    found, next_one = [], 0
    for first, last in merged(ranges):
        found.append((next_one, first - 1))
        next_one = last + 1
    found.append((next_one, sys.maxunicode))
    return tuple((first, last) for first, last in found if first <= last)


def utf8(first: int, last: int) -> list[Ranges]:
    """The bytes of the characters first … last: sequences with a range for every byte.

    The first ranges of two sequences are equal or have no byte in common, and so on.
    """
    if first <= 0xDFFF and last >= 0xD800:  # surrogates are no characters
        outside = [(first, 0xD7FF), (0xE000, last)]
        return [s for a, b in outside if a <= b for s in utf8(a, b)]
    for end in ENDS_OF_LENGTH:
        if first <= end < last:
            return [*utf8(first, end), *utf8(end + 1, last)]
    if last < 0x80:
        return [((first, last),)]
    for bits in (6, 12, 18):  # cut where the later bytes do not take all values
        mask = (1 << bits) - 1
        if first & ~mask != last & ~mask:
            if first & mask:
                return [*utf8(first, first | mask), *utf8((first | mask) + 1, last)]
            if last & mask != mask:
                return [*utf8(first, (last & ~mask) - 1), *utf8(last & ~mask, last)]
    low, high = chr(first).encode(), chr(last).encode()
    return [tuple(zip(low, high, strict=True))]
