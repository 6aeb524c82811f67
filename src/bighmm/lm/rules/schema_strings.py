"""Regular expressions of JSON strings: of any length, of a pattern, and of a format.

A pattern of a schema is about the string's characters, and it may match a part of them. Here it is
parsed, by the parser of Python's `re`, and written again as an expression of the JSON text: quotes
and backslashes of the string are escaped in the text, and no other character may be one of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from re import _constants as code  # type: ignore[attr-defined]  # has no public name
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from bighmm.lm.rules.characters import Ranges, category, members, merged, others
from bighmm.lm.rules.expression import alternatives
from bighmm.lm.rules.schema_numbers import NOTHING

_PLAIN = r"[^\"\\\x00-\x1f\x7f-\x9f]"  # characters that stand for themselves in a JSON string
CHARACTER = rf"(?:{_PLAIN}|\\[\"\\/bfnrt])"

_DATE = (
    r"(?:[12][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    r"|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
    r"|(?:1[2-9]|2[0-9])(?:0[48]|[2468][048]|[13579][26])-02-29)"
)
_TIME = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,6})?"
    r"(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_HOST = r"(?:[a-z0-9]+(?:-[a-z0-9]+)*\.)+[a-z]{2,12}"
_BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
FORMATS = {  # texts of these expressions are of the format; not every text of the format is here
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "uuid": "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    "ipv4": rf"{_BYTE}(?:\.{_BYTE}){{3}}",
    "hostname": _HOST,
    "email": rf"[a-z0-9]+(?:[._-][a-z0-9]+)*@{_HOST}",
    "uri": rf"https?://{_HOST}(?:/[A-Za-z0-9._~-]*)*",
}


def of_length(least: int, most: int | None) -> str:
    """The expression of a JSON string of so many characters, quotes included."""
    return f'"{CHARACTER}{{{least},{"" if most is None else most}}}"'


def of_pattern(pattern: str) -> str:
    """The expression of a JSON string in which a pattern of a schema matches, quotes included.

    Raises ValueError if the pattern is malformed, or has something other than characters, classes,
    groups, repetitions, alternatives, and anchors at its ends.
    """
    try:
        parsed = list(parser.parse(pattern, re.ASCII))
    except (re.error, RecursionError, OverflowError) as error:
        raise ValueError(f"the pattern {pattern!r} is malformed ({error})") from None
    found = []
    for items, begins, ends in alternatives(parsed):
        before, after = ("" if anchor else f"{CHARACTER}*" for anchor in (begins, ends))
        found.append(before + _sequence(items, pattern) + after)
    return f'"(?:{"|".join(found)})"'


def _sequence(items: Any, pattern: str) -> str:
    return "".join(_item(kind, value, pattern) for kind, value in items)


def _item(kind: Any, value: Any, pattern: str) -> str:
    write = _WRITERS.get(kind)
    if write is None:
        raise ValueError(f"the pattern {pattern!r} has {str(kind).lower()}, which is not supported")
    return write(value, pattern)


def _literal(value: int, pattern: str) -> str:
    """One character as a JSON string has it."""
    return re.escape(json.dumps(chr(value), ensure_ascii=False)[1:-1])


def _repeat(value: Any, pattern: str) -> str:
    least, most, items = value
    limit = "" if most == code.MAXREPEAT else int(most)
    return f"(?:{_sequence(items, pattern)}){{{least},{limit}}}"


def _group(value: Any, pattern: str) -> str:
    _, added, removed, items = value
    if added or removed:
        raise ValueError(f"the pattern {pattern!r} has flags, which are not supported")
    return f"(?:{_sequence(items, pattern)})"


def _branch(value: Any, pattern: str) -> str:
    return f"(?:{'|'.join(_sequence(items, pattern) for items in value[1])})"


def _class(items: Any, pattern: str) -> str:
    """Square brackets, without the characters that a JSON string escapes."""
    negated = items[0][0] is code.NEGATE
    wanted = members(tuple(items), _in_some if negated else _in_all)
    found = others([*others(wanted), *_ESCAPED])
    ranges = "".join(rf"\U{first:08x}-\U{last:08x}" for first, last in found)
    return f"[{ranges}]" if found else NOTHING


def _in_all(kind: Any) -> Ranges:
    """The characters of \\d, \\w, … for all readers, whether they know Unicode or only ASCII."""
    return _ASCII[kind] if kind in _ASCII else category(kind)


def _in_some(kind: Any) -> Ranges:
    """The characters of \\d, \\w, … for some readers."""
    return others(_ASCII[_OPPOSITES[kind]]) if kind in _OPPOSITES else category(kind)


_ESCAPED = ((0, 0x1F), (ord('"'), ord('"')), (ord("\\"), ord("\\")), (0x7F, 0x9F))
_ASCII: dict[Any, Ranges] = {
    code.CATEGORY_DIGIT: merged([(ord("0"), ord("9"))]),
    code.CATEGORY_WORD: merged(
        [(ord(a), ord(b)) for a, b in (("0", "9"), ("A", "Z"), ("a", "z"), ("_", "_"))]
    ),
    code.CATEGORY_SPACE: ((ord(" "), ord(" ")),),
}
_OPPOSITES = {
    code.CATEGORY_NOT_DIGIT: code.CATEGORY_DIGIT,
    code.CATEGORY_NOT_WORD: code.CATEGORY_WORD,
    code.CATEGORY_NOT_SPACE: code.CATEGORY_SPACE,
}
_WRITERS: dict[Any, Callable[[Any, str], str]] = {
    code.LITERAL: _literal,
    code.NOT_LITERAL: lambda value, pattern: _class(
        [(code.NEGATE, None), (code.LITERAL, value)], pattern
    ),
    code.ANY: lambda value, pattern: _PLAIN,
    code.IN: _class,
    code.MAX_REPEAT: _repeat,
    code.MIN_REPEAT: _repeat,
    code.SUBPATTERN: _group,
    code.BRANCH: _branch,
}
