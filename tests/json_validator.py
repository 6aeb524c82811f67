"""A small validator of JSON schemas, independent of the rules that are tested with it."""

import datetime
import re
import uuid

TYPES = {
    "null": lambda v: v is None,
    "boolean": lambda v: isinstance(v, bool),
    "integer": lambda v: not isinstance(v, bool) and isinstance(v, int | float) and v == int(v),
    "number": lambda v: not isinstance(v, bool) and isinstance(v, int | float),
    "string": lambda v: isinstance(v, str),
    "array": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, dict),
}


def iso(text):
    return datetime.datetime.fromisoformat(text)


FORMATS = {
    "date": datetime.date.fromisoformat,
    "time": lambda text: iso(f"2000-01-01T{text}"),
    "date-time": iso,
    "uuid": uuid.UUID,
    "ipv4": lambda text: [1 / (int(part) < 256) for part in text.split(".")],
}
NUMBERS = {
    "minimum": lambda v, x: v >= x,
    "maximum": lambda v, x: v <= x,
    "exclusiveMinimum": lambda v, x: v > x,
    "exclusiveMaximum": lambda v, x: v < x,
}
COUNTS = {
    **dict.fromkeys(("minLength", "minItems", "minProperties"), lambda n, x: n >= x),
    **dict.fromkeys(("maxLength", "maxItems", "maxProperties"), lambda n, x: n <= x),
}
SIZED = {"Length": str, "Items": list, "Properties": dict}


def is_valid(value, schema, root=None):
    """Whether a value satisfies a schema; KeyError for a keyword that is not known here."""
    root = schema if root is None else root
    return schema is True or all(
        holds(value, name, given, schema, root) for name, given in schema.items()
    )


def holds(value, name, given, schema, root):
    def also(v, s):
        return is_valid(v, s, root)

    if name in NUMBERS:
        return not TYPES["number"](value) or NUMBERS[name](value, given)
    if name in COUNTS:
        return not isinstance(value, SIZED[name[3:]]) or COUNTS[name](len(value), given)
    if name == "format":
        return given not in FORMATS or not isinstance(value, str) or parses(FORMATS[given], value)
    first = len(schema.get("prefixItems", []))
    items, members = isinstance(value, list), isinstance(value, dict)
    return {
        **dict.fromkeys(("$defs", "title", "description", "$schema", "default"), lambda: True),
        "type": lambda: any(
            TYPES[kind](value) for kind in (given if isinstance(given, list) else [given])
        ),
        "uniqueItems": lambda: not items or len(value) == len(set(map(str, value))),
        "enum": lambda: value in given,
        "const": lambda: value == given,
        "pattern": lambda: not isinstance(value, str) or bool(re.search(given, value)),
        "items": lambda: not items or all(also(v, given) for v in value[first:]),
        "prefixItems": lambda: not items or all(map(also, value, given)),
        "properties": lambda: (
            not members or all(also(value[k], s) for k, s in given.items() if k in value)
        ),
        "required": lambda: not members or all(k in value for k in given),
        "additionalProperties": lambda: (
            not members
            or all(
                given is not False and also(v, given)
                for k, v in value.items()
                if k not in schema.get("properties", {})
            )
        ),
        "anyOf": lambda: any(also(value, s) for s in given),
        "oneOf": lambda: sum(also(value, s) for s in given) == 1,
        "allOf": lambda: all(also(value, s) for s in given),
        "$ref": lambda: also(value, root["$defs"][given.removeprefix("#/$defs/")]),
    }[name]()


def parses(read, text):
    try:
        read(text)
    except (ValueError, ZeroDivisionError):
        return False
    return True
