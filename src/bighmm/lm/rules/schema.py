"""JSON schemas as regular expressions, for texts that are certainly valid.

Every text of the expression is valid under the schema (draft 2020-12). The reverse is not true: the
members of an object come in the order of `properties`, and no others occur; there is at most one
space between signs; a number with bounds has no exponent; and values of unknown kind are nested to
a small depth. A keyword that cannot be kept so is refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable
from typing import Any

from bighmm.base.json_files import DEEPEST
from bighmm.infer.rules.work import spend
from bighmm.lm.rules.schema_numbers import MOST_DIGITS, NUMBER, Interval, integers, numbers
from bighmm.lm.rules.schema_strings import FORMATS, of_length, of_pattern

LARGEST = 100_000  # characters of the expression
LARGEST_COUNT = 1_000  # of characters or items that a schema asks for
COMPARING = 32  # steps of Python that comparing two alternatives counts as
DEPTH = 2  # of arrays and objects whose content a schema leaves open

# Keywords that say nothing about which texts are valid.
ANNOTATIONS = {
    *("$schema", "$id", "$anchor", "$comment", "$defs", "definitions", "title", "description"),
    *("default", "examples", "example", "deprecated", "readOnly", "writeOnly", "discriminator"),
    *("contentEncoding", "contentMediaType", "contentSchema"),
}
OF_TYPE = {  # the keywords about each type that are kept
    "object": {"properties", "required", "additionalProperties", "minProperties", "maxProperties"},
    "array": {"items", "prefixItems", "minItems", "maxItems", "uniqueItems"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"},
    "boolean": set[str](),
    "null": set[str](),
}
ABOUT_TYPES = {"type", *(keyword for keywords in OF_TYPE.values() for keyword in keywords)}
S = "[ ]?"  # between the signs of JSON


def schema_pattern(schema: Any) -> str:
    """The regular expression of texts that are valid under a schema.

    Raises ValueError that names the keyword and where it stands if the schema has one that cannot
    be kept, is malformed, refers to itself, or becomes too large.
    """
    return _Schema(schema).pattern(schema, "#", ())


class _Schema:
    """A whole schema, to which the references in it refer."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self.written = 0  # characters of all parts so far

    def pattern(self, schema: Any, at: str, within: tuple[str, ...]) -> str:
        """The expression of the part of the schema that stands `at` a place.

        within: the references that were followed to it.
        """
        if schema is True:
            schema = {}
        if not isinstance(schema, dict):
            raise ValueError(f"{at} is {_shown(schema)}; it must be a schema that texts satisfy")
        if "$id" in schema and schema is not self.root:
            _refuse(["$id"], at, "inside a schema")
        given = {key for key in schema if key not in ANNOTATIONS and not key.startswith("x-")}
        for keyword, write in self._combinations().items():
            if keyword in given:
                _refuse(given - {keyword}, at, f"beside {keyword!r}")
                return self._counted(write(schema[keyword], f"{at}/{keyword}", within), at)
        if given & {"enum", "const"}:
            _refuse(given - {"enum", "const", "type"}, at, "beside 'enum' or 'const'")
            values = _values(schema, at)
            return self._counted(f"(?:{'|'.join(map(_literal, values))})", at)
        _refuse(given - ABOUT_TYPES, at)
        found = [self._of_type(kind, schema, at, within) for kind in _types(schema, given, at)]
        return self._counted(found[0] if len(found) == 1 else f"(?:{'|'.join(found)})", at)

    def _counted(self, pattern: str, at: str) -> str:
        """The same expression; ValueError if this and all before cannot become a small one.

        Those of a level stand beside each other in the whole, and there are `DEEPEST` levels.
        """
        self.written += len(pattern)
        if self.written > DEEPEST * LARGEST:
            raise ValueError(f"{at} is too large for a rule")
        return _limited(pattern, at)

    def _combinations(self) -> dict[str, Callable[[Any, str, tuple[str, ...]], str]]:
        return {
            "$ref": self._reference,
            "anyOf": self._any_of,
            "oneOf": self._one_of,
            "allOf": self._all_of,
        }

    def _reference(self, name: Any, at: str, within: tuple[str, ...]) -> str:
        if name in within:
            raise ValueError(f"{at} refers to itself ({name}), which a rule cannot")
        return self.pattern(self._found(name, at), str(name), (*within, name))

    def _found(self, name: Any, at: str) -> Any:
        """The part of the schema that a reference names."""
        if not isinstance(name, str) or not re.match(r"#(/|$)", name):
            raise ValueError(f"{at} is {_shown(name)}; only references such as #/$defs/name work")
        part, steps = self.root, name.split("/")[1:]
        spend(in_python=COMPARING + len(steps))
        for step in steps:
            step = step.replace("~1", "/").replace("~0", "~")
            if isinstance(part, list) and step.isdecimal() and int(step) < len(part):
                part = part[int(step)]
            elif isinstance(part, dict) and step in part:
                part = part[step]
            else:
                raise ValueError(f"{at} is {_shown(name)}, which is not in the schema")
        return part

    def _any_of(self, parts: Any, at: str, within: tuple[str, ...]) -> str:
        found = [self.pattern(part, f"{at}/{i}", within) for i, part in _listed(parts, at)]
        return f"(?:{'|'.join(found)})"

    def _one_of(self, parts: Any, at: str, within: tuple[str, ...]) -> str:
        pattern = self._any_of(parts, at, within)
        for i, part in enumerate(parts):
            for j in range(i):
                if not self._exclude(parts[j], part):
                    raise ValueError(
                        f"{at} has the alternatives {j} and {i}, of which a text may satisfy both; "
                        "use 'anyOf', or give them different types or constants"
                    )
        return pattern

    def _all_of(self, parts: Any, at: str, within: tuple[str, ...]) -> str:
        if len(_listed(parts, at)) != 1:
            raise ValueError(f"{at} has {len(parts)} parts, and only one is supported")
        return self.pattern(parts[0], f"{at}/0", within)

    def _exclude(self, a: Any, b: Any) -> bool:
        """Whether no value can satisfy both schemas, as far as that is easily seen."""
        a, b = self._resolved(a), self._resolved(b)
        if not isinstance(a, dict) or not isinstance(b, dict):
            return False
        spend(in_python=COMPARING + _size(a) + _size(b))
        if all({"enum", "const"} & set(s) for s in (a, b)):
            values = [set(map(_key, _values(s, "#"))) for s in (a, b)]
            return not values[0] & values[1]
        kinds = [_kinds(s) for s in (a, b)]
        if not kinds[0] & kinds[1]:
            return True
        if kinds[0] | kinds[1] != {"object"}:
            return False
        both = set(a.get("required", ())) & set(b.get("required", ()))
        members = [s.get("properties", {}) for s in (a, b)]
        return any(
            self._exclude(members[0][name], members[1][name])
            for name in both & set(members[0]) & set(members[1])
        )

    def _resolved(self, schema: Any) -> Any:
        """A schema, or the one that it refers to."""
        for _ in range(LARGEST_COUNT):
            if not isinstance(schema, dict) or "$ref" not in schema:
                break
            schema = self._found(schema["$ref"], "#")
        return schema

    def _of_type(self, kind: str, schema: dict[str, Any], at: str, within: tuple[str, ...]) -> str:
        if kind == "object":
            return self._object(schema, at, within)
        if kind == "array":
            return self._array(schema, at, within)
        if kind == "string":
            return _string(schema, at)
        if kind in ("number", "integer"):
            interval = _interval(schema, at, whole=kind == "integer")
            return integers(interval) if kind == "integer" else numbers(interval)
        return "null" if kind == "null" else "(?:true|false)"

    def _array(self, schema: dict[str, Any], at: str, within: tuple[str, ...]) -> str:
        least, most = _counts(schema, "minItems", "maxItems", at)
        if schema.get("uniqueItems", False) is not False and (most is None or most > 1):
            raise ValueError(f"'uniqueItems' at {at} is not supported")
        first = schema.get("prefixItems", [])
        firsts = [
            self.pattern(part, f"{at}/prefixItems/{i}", within)
            for i, part in (_listed(first, f"{at}/prefixItems") if first else ())
        ]
        rest = None
        if schema.get("items", True) is False or ("items" not in schema and firsts):
            most = len(firsts) if most is None else min(most, len(firsts))
        else:
            rest = self._content(schema.get("items", True), f"{at}/items", within)
        if most is not None and most < least:
            raise ValueError(f"{at} asks for {least} items or more, and allows {most}")
        return _items(firsts, rest, least, most, at)

    def _object(self, schema: dict[str, Any], at: str, within: tuple[str, ...]) -> str:
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, dict):
            raise ValueError(f"{at}/properties is {_shown(properties)}; it must be an object")
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise ValueError(f"{at}/required is {_shown(required)}; it must be a list of names")
        least, most = _counts(schema, "minProperties", "maxProperties", at)
        others = schema.get("additionalProperties", True)
        at_others = f"{at}/additionalProperties"
        if not properties and not required:
            if others is False:
                most = 0
            if least > 1:  # the same name may occur twice
                raise ValueError(f"'minProperties' at {at} is not supported without 'properties'")
            value = "" if most == 0 else self._content(others, at_others, within)
            member = f"{of_length(0, None)}{S}:{S}{value}"
            return rf"\{{{S}{_repeated(member, least, most)}{S}\}}"
        missing = [name for name in dict.fromkeys(required) if name not in properties]
        if missing and others is False:
            raise ValueError(f"{at} requires {missing[0]!r}, and allows no such member")
        members = {
            name: self.pattern(part, f"{at}/properties/{name}", within)
            for name, part in properties.items()
            if part is not False or name in required
        } | {name: self._content(others, at_others, within) for name in missing}
        if len(set(required)) < least:
            raise ValueError(f"'minProperties' at {at} is not supported for optional members")
        if most is not None and most < len(members):
            raise ValueError(f"'maxProperties' at {at} is not supported below all members")
        patterns = {n: f"{_literal(n)}{S}:{S}{pattern}" for n, pattern in members.items()}
        return rf"\{{{S}{_members(patterns, set(required), at)}{S}\}}"

    def _content(self, schema: Any, at: str, within: tuple[str, ...]) -> str:
        if schema in (True, {}):
            return self._counted(_anything(DEPTH - 1), at)
        return self.pattern(schema, at, within)


def _types(schema: dict[str, Any], given: set[str], at: str) -> list[str]:
    """The types of a schema; if it names none, those that its keywords are about, or all."""
    if "type" not in schema:
        implied = [kind for kind in OF_TYPE if given & OF_TYPE[kind] and kind != "integer"]
        return implied or [kind for kind in OF_TYPE if kind != "integer"]
    kinds = _as_list(schema["type"])
    if not kinds or any(kind not in OF_TYPE for kind in kinds):
        raise ValueError(f"{at}/type is {_shown(schema['type'])}; known are {', '.join(OF_TYPE)}")
    return list(dict.fromkeys(kinds))


def _string(schema: dict[str, Any], at: str) -> str:
    least, most = _counts(schema, "minLength", "maxLength", at)
    named = [name for name in ("pattern", "format") if name in schema]
    if named and (len(named) > 1 or {"minLength", "maxLength"} & set(schema)):
        _refuse(named[-1:], at, "beside other keywords about the string")
    if "pattern" in named:
        try:
            return of_pattern(schema["pattern"])
        except (ValueError, TypeError) as error:
            raise ValueError(f"'pattern' at {at} cannot be used: {error}") from None
    if "format" in named:
        if (text := FORMATS.get(str(schema["format"]))) is None:
            raise ValueError(
                f"'format' at {at} is {_shown(schema['format'])}; known are {', '.join(FORMATS)}"
            )
        return f'"{text}"'
    return of_length(least, most)


def _interval(schema: dict[str, Any], at: str, whole: bool) -> Interval:
    """The bounds of a number; those of whole numbers are rounded to whole numbers."""

    def bound(keyword: str, sign: int) -> tuple[int, bool] | None:
        """The bound of a keyword times `sign`, as a lower bound, and whether it is left out."""
        if keyword not in schema:
            return None
        value, is_open = schema[keyword], keyword.startswith("exclusive")
        if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
            raise ValueError(f"{at}/{keyword} is {_shown(value)}; it must be a number")
        if abs(value) >= 10**MOST_DIGITS:
            raise ValueError(f"{at}/{keyword} has more than {MOST_DIGITS} digits")
        if value != int(value):
            if not whole:
                raise ValueError(
                    f"{keyword!r} at {at} is {value}; only whole numbers are supported as bounds "
                    "of a number"
                )
            return math.ceil(sign * value), False
        return sign * int(value), is_open

    def tightest(keywords: tuple[str, str], sign: int) -> tuple[int | None, bool]:
        found = [each for keyword in keywords if (each := bound(keyword, sign)) is not None]
        return max(found, default=(None, False))

    least, open_least = tightest(("minimum", "exclusiveMinimum"), 1)
    most, open_most = tightest(("maximum", "exclusiveMaximum"), -1)
    return Interval(least, None if most is None else -most, open_least, open_most)


def _counts(schema: dict[str, Any], least: str, most: str, at: str) -> tuple[int, int | None]:
    """The values of two keywords that count something."""
    for keyword in (least, most):
        value = schema.get(keyword, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
            raise ValueError(f"{at}/{keyword} is {_shown(value)}; it must be a whole number")
        if not 0 <= value <= LARGEST_COUNT:
            raise ValueError(f"{at}/{keyword} is {value}; it must be 0 to {LARGEST_COUNT}")
    low, high = int(schema.get(least, 0)), schema.get(most)
    if high is not None and high < low:
        raise ValueError(f"{at} asks for {low} or more ({least}), and allows {high} ({most})")
    return low, None if high is None else int(high)


def _items(firsts: list[str], rest: str | None, least: int, most: int | None, at: str) -> str:
    """The expression of an array: `firsts` in this order, then any number of `rest`."""
    limit = len(firsts) if most is None else min(len(firsts), most)
    tail = ""
    if rest is not None and (most is None or most > limit):
        low = max(0, least - limit)
        comma = f",{S}" if limit else ""
        if not limit:
            return rf"\[{S}{_repeated(rest, low, most)}{S}\]"
        tail = f"(?:{comma}{rest}){{{low},{'' if most is None else most - limit}}}"
    for i in reversed(range(limit)):
        tail = f"{f',{S}' if i else ''}{firsts[i]}{tail}"
        tail = _limited(tail if i < least else f"(?:{tail})?", at)
    return rf"\[{S}{tail}{S}\]"


def _members(patterns: dict[str, str], required: set[str], at: str) -> str:
    """The members of an object in this order, with commas between those that occur."""
    names = list(patterns)
    anchors = [i for i, name in enumerate(names) if name in required]
    if not anchors:
        ways, before = "", ""  # by the last member that occurs
        for name in names:
            ways = _limited(f"{ways}{'|' if ways else ''}{before}{patterns[name]}", at)
            before += f"(?:{patterns[name]}{S},{S})?"
        return f"(?:{ways})?"
    last = anchors[-1]
    found = ""
    for i, name in enumerate(names):
        part = patterns[name]
        part = f"{part}{S},{S}" if i < last else part if i == last else f"{S},{S}{part}"
        found = _limited(found + (part if name in required else f"(?:{part})?"), at)
    return found


def _repeated(item: str, least: int, most: int | None) -> str:
    """So many items with commas between them."""
    if most == 0:
        return ""
    more = f"(?:{S},{S}{item}){{{max(0, least - 1)},{'' if most is None else most - 1}}}"
    return f"{item}{more}" if least else f"(?:{item}{more})?"


def _anything(depth: int) -> str:
    """The expression of any value, with arrays and objects of so many levels."""
    scalars = f"true|false|null|{NUMBER}|{of_length(0, None)}"
    if depth == 0:
        return f"(?:{scalars})"
    inner = _anything(depth - 1)
    array = rf"\[{S}{_repeated(inner, 0, None)}{S}\]"
    entry = f"{of_length(0, None)}{S}:{S}{inner}"
    return rf"(?:{scalars}|{array}|\{{{S}{_repeated(entry, 0, None)}{S}\}})"


def _values(schema: dict[str, Any], at: str) -> list[Any]:
    """The values that `enum`, `const` and `type` allow together."""
    values = schema.get("enum", [schema.get("const")])
    values = [value for _, value in _listed(values, f"{at}/enum")]
    if "const" in schema:
        values = [value for value in values if _key(value) == _key(schema["const"])]
    if "type" in schema:
        kinds = _types(schema, set(), at)
        values = [value for value in values if any(_is_a(value, kind) for kind in kinds)]
    if not values:
        raise ValueError(f"{at} allows none of its own values")
    return values


def _is_a(value: Any, kind: str) -> bool:
    if isinstance(value, bool) or value is None:
        return kind == ("null" if value is None else "boolean")
    if isinstance(value, int | float):
        return kind == "number" or (kind == "integer" and value == int(value))
    return isinstance(value, {"string": str, "array": list, "object": dict}.get(kind, ()))


def _literal(value: Any) -> str:
    """The expression of one value."""
    if isinstance(value, list):
        return rf"\[{S}{f'{S},{S}'.join(map(_literal, value))}{S}\]"
    if isinstance(value, dict):
        entries = (f"{_literal(name)}{S}:{S}{_literal(item)}" for name, item in value.items())
        return rf"\{{{S}{f'{S},{S}'.join(entries)}{S}\}}"
    return re.escape(json.dumps(value, ensure_ascii=False))


def _key(value: Any) -> str:
    """A string that is the same for equal values of JSON."""
    if isinstance(value, float) and value == int(value):
        value = int(value)
    return json.dumps(value, sort_keys=True)


def _kinds(schema: dict[str, Any]) -> set[str]:
    """The types of the values that a schema allows, with whole numbers among the numbers."""
    known = set(OF_TYPE)
    if {"enum", "const"} & set(schema):
        values = _values(schema, "#")
        known = {kind for kind in known if any(_is_a(value, kind) for value in values)}
    elif "type" in schema:
        known = set(_types(schema, set(), "#"))
    return {"number" if kind == "integer" else kind for kind in known}


def _as_list(kinds: Any) -> list[Any]:
    return kinds if isinstance(kinds, list) else [kinds]


def _listed(parts: Any, at: str) -> list[tuple[int, Any]]:
    """The parts of a list that must not be empty, numbered."""
    if not isinstance(parts, list) or not parts:
        raise ValueError(f"{at} is {_shown(parts)}; it must be a list that is not empty")
    return list(enumerate(parts))


def _refuse(keywords: Iterable[str], at: str, where: str = "") -> None:
    """Raise ValueError for the first keyword, if there is any."""
    for keyword in sorted(keywords):
        raise ValueError(f"{keyword!r} at {at} is not supported{f' {where}' if where else ''}")


def _size(schema: dict[str, Any]) -> int:
    """How many values and names a schema has that are compared with those of another."""
    parts = (schema.get(keyword) for keyword in ("enum", "required", "properties"))
    return sum(len(part) for part in parts if isinstance(part, list | dict))


def _limited(pattern: str, at: str) -> str:
    if len(pattern) > LARGEST:
        raise ValueError(f"{at} is too large for a rule")
    return pattern


def _shown(value: Any) -> str:
    """A value in a message, cut if it is long."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
