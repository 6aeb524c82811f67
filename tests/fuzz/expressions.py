"""Attack: random regular expressions over characters against `re`, and JSON schemas against a
validator that is written here."""

from __future__ import annotations

import functools
import itertools
import json
import random
import re
from pathlib import Path
from typing import Any

from bighmm.data.tokenizers import Tokenizer, open_tokenizer
from bighmm.infer.rules import Rule
from bighmm.lm.rules.text import json_schema, text_regex

from .originals import Originals
from .outcome import Case, Failure, Say

LETTERS = "ab1 "
ODD = ("é", "🦜", "\t", '"', "\\", "a" * 12, "-0.5e3", "ab ab", "\x7f", "\u2028")


def attack(originals: Originals, case: Case, draw: random.Random, place: Path, say: Say) -> str:
    """Compare a rule about text with what it is about, on many texts."""
    tokenizer = _tokenizer(originals.path("bpe"))
    if draw.random() < 0.5:
        _compare_expression(draw, tokenizer, say)
    else:
        _compare_schema(draw, tokenizer, say)
    return "same"


@functools.cache
def _tokenizer(path: Path) -> Tokenizer:
    return open_tokenizer(path)


# Expressions.


def _compare_expression(draw: random.Random, tokenizer: Tokenizer, say: Say) -> None:
    pattern = random_expression(draw, draw.randint(0, 4))
    say(f"expression {pattern!r}")
    rule = text_regex(pattern, tokenizer)
    short = ("".join(t) for n in range(4) for t in itertools.product(LETTERS, repeat=n))
    longer = ("".join(draw.choices(LETTERS, k=draw.randint(4, 8))) for _ in range(30))
    for text in (*short, *longer, *ODD):
        expected = re.fullmatch(pattern, text) is not None
        if _matches(rule, tokenizer, text) != expected:
            raise Failure(f"{text!r} should be {'accepted' if expected else 'rejected'}")


def random_expression(draw: random.Random, depth: int) -> str:
    """An expression in the syntax of Python's `re`."""
    if depth == 0:
        return draw.choice(
            (
                *(
                    "a",
                    "b",
                    "1",
                    " ",
                    ".",
                    "[ab]",
                    "[^a]",
                    "[a-z]",
                    r"\d",
                    r"\w",
                    r"\s",
                    r"\D",
                    "ab",
                ),
                *(r"[\d ]", r"[^\w]", "é", "[é-🦜]", r"\.", "", r"[^b\s]", r"\x61", "[1-9a]"),
            )
        )
    one, other = (random_expression(draw, depth - 1) for _ in range(2))
    sign = draw.choice(("*", "+", "?", "{2}", "{1,2}", "{2,}", "{,2}", "*?", "+?"))
    return draw.choice(
        (f"(?:{one}|{other})", f"(?:{one}){other}", f"{one}{other}", f"(?:{one}){sign}", f"({one})")
    )


# Schemas.


def _compare_schema(draw: random.Random, tokenizer: Tokenizer, say: Say) -> None:
    schema = random_schema(draw, draw.randint(0, 2))
    say(f"schema {json.dumps(schema)}")
    rule = json_schema(schema, tokenizer)
    for _ in range(60):
        value = _value_for(draw, schema) if draw.random() < 0.7 else _any_value(draw, 2)
        spaces = draw.choice(((",", ":"), (", ", ": ")))
        text = json.dumps(value, separators=spaces, ensure_ascii=draw.random() < 0.3)
        accepted = _matches(rule, tokenizer, text)
        if accepted and not is_valid(schema, value):
            raise Failure(f"{text} is accepted, but not valid")
        if not accepted and is_valid(schema, value) and _in_form(schema, value, text):
            raise Failure(f"{text} is rejected, but valid")


def random_schema(draw: random.Random, depth: int) -> dict[str, Any]:
    """A schema of keywords that the library says it keeps, and some that it may refuse."""
    kinds = ["integer", "number", "string", "boolean", "null", "enum", "const"]
    kind = draw.choice([*kinds, "array", "object", "anyOf"] if depth else kinds)
    least, most = sorted(draw.choices(range(-12, 13), k=2))
    count = draw.randint(0, 2)
    match kind:
        case "integer" | "number":
            bounds = {
                draw.choice(("minimum", "exclusiveMinimum")): least,
                draw.choice(("maximum", "exclusiveMaximum")): most,
            }
            chosen = draw.sample(sorted(bounds), draw.randint(0, 2))
            return {"type": kind, **{name: bounds[name] for name in chosen}}
        case "string":
            more = {"minLength": count, "maxLength": count + draw.randint(0, 2)}
            patterns = ("^a+$", "b", "^[a-b]*$", "a|^b", r"^\d{2}$", "")
            return draw.choice(({}, more, {"maxLength": 2}, {"pattern": draw.choice(patterns)})) | {
                "type": "string"
            }
        case "boolean" | "null":
            return {"type": kind}
        case "enum":
            return {"enum": [_any_value(draw, 1) for _ in range(draw.randint(1, 3))]}
        case "const":
            return {"const": _any_value(draw, 1)}
        case "array":
            lengths = {"minItems": count, "maxItems": count + draw.randint(0, 2)}
            found = {"type": "array", "items": random_schema(draw, depth - 1)}
            return found | draw.choice(({}, lengths, {"maxItems": 2}, {"minItems": 1}))
        case "anyOf":
            return {"anyOf": [random_schema(draw, depth - 1) for _ in range(2)]}
    names = draw.sample(("a", "b", "c d", 'q"', "é"), draw.randint(0, 3))
    properties = {name: random_schema(draw, depth - 1) for name in names}
    required = draw.sample(names, draw.randint(0, len(names)))
    closed = {} if draw.random() < 0.5 else {"additionalProperties": False}
    return {"type": "object", "properties": properties, "required": required, **closed}


def is_valid(schema: Any, value: Any) -> bool:
    """Whether a value is valid under a schema, by the specification."""
    if "anyOf" in schema:
        return any(is_valid(part, value) for part in schema["anyOf"])
    if "enum" in schema:
        return any(_equal(value, one) for one in schema["enum"])
    if "const" in schema:
        return _equal(value, schema["const"])
    match schema["type"]:
        case "boolean":
            return isinstance(value, bool)
        case "null":
            return value is None
        case "string":
            return (
                isinstance(value, str)
                and schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value))
                and re.search(schema.get("pattern", ""), value) is not None
            )
        case "integer" | "number":
            if isinstance(value, bool) or not isinstance(value, int | float):
                return False
            if schema["type"] == "integer" and value != int(value):
                return False
            return (
                schema.get("minimum", value) <= value <= schema.get("maximum", value)
                and schema.get("exclusiveMinimum", value - 1) < value
                and value < schema.get("exclusiveMaximum", value + 1)
            )
        case "array":
            return (
                isinstance(value, list)
                and schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value))
                and all(is_valid(schema["items"], item) for item in value)
            )
    if not isinstance(value, dict) or not set(schema["required"]) <= set(value):
        return False
    if "additionalProperties" in schema and not set(value) <= set(schema["properties"]):
        return False
    return all(
        is_valid(schema["properties"][name], item)
        for name, item in value.items()
        if name in schema["properties"]
    )


def _in_form(schema: Any, value: Any, text: str) -> bool:
    """Whether a valid text is in the form that the library keeps to."""
    if "\\" in text or re.search(r"[eE]|\d\.\d|[^ -~]|-0", text):
        return False  # escapes, exponents and fractions may be written in several ways
    if "anyOf" in schema:
        return any(is_valid(s, value) and _in_form(s, value, text) for s in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return not isinstance(value, dict | list)
    if schema["type"] == "array":
        return all(_in_form(schema["items"], item, text) for item in value)
    if schema["type"] == "object":
        names = [name for name in schema["properties"] if name in value]
        return list(value) == names and all(
            _in_form(schema["properties"][name], item, text) for name, item in value.items()
        )
    return True


def _value_for(draw: random.Random, schema: Any) -> Any:
    """A value that may well be valid."""
    if "anyOf" in schema:
        return _value_for(draw, draw.choice(schema["anyOf"]))
    if "enum" in schema:
        return draw.choice(schema["enum"])
    if "const" in schema:
        return schema["const"]
    match schema["type"]:
        case "boolean":
            return draw.random() < 0.5
        case "null":
            return None
        case "string":
            return "".join(draw.choices("ab1", k=draw.randint(0, 3)))
        case "integer":
            return draw.randint(-14, 14)
        case "number":
            return draw.choice((draw.randint(-14, 14), draw.randint(-140, 140) / 10))
        case "array":
            return [_value_for(draw, schema["items"]) for _ in range(draw.randint(0, 4))]
    names = [name for name in schema["properties"] if draw.random() < 0.8]
    return {name: _value_for(draw, schema["properties"][name]) for name in names}


def _any_value(draw: random.Random, depth: int) -> Any:
    if depth and draw.random() < 0.3:
        items = [_any_value(draw, depth - 1) for _ in range(draw.randint(0, 2))]
        return items if draw.random() < 0.5 else {f"a{i}"[:1]: item for i, item in enumerate(items)}
    return draw.choice((None, True, False, 0, 1, -3, 7, 1.5, "", "a", "bb", "é", 'q"', "1", 100))


def _equal(one: Any, other: Any) -> bool:
    """Equality in JSON, where true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[k], other[k]) for k in one)
    return (type(one) is type(other) and one == other) or (
        isinstance(one, int | float) and isinstance(other, int | float) and one == other
    )


def _matches(rule: Rule, tokenizer: Tokenizer, text: str) -> bool:
    ids = tokenizer.encode(text)
    if tokenizer.decode(ids) != text:
        raise Failure(f"{text!r} is read back as {tokenizer.decode(ids)!r}")
    return rule.matches(ids)
