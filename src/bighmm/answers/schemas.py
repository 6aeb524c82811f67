"""JSON schemas and tables of the objects, made from their types."""

from __future__ import annotations

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, NotRequired, TypedDict, is_typeddict

from bighmm.base.docstrings import field_docstrings
from bighmm.lm.rules.asked import AskedRule

PLAIN = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


@dataclasses.dataclass(frozen=True)
class Key:
    """One key of an object."""

    name: str
    hint: Any  # its type
    about: str
    required: bool


def keys_of(answer: type) -> list[Key]:
    """The keys of an object of `answers.objects`, in their order."""
    hints = typing.get_type_hints(answer, include_extras=True)
    return [_key(name, hint) for name, hint in hints.items()]


def objects_in(answer: type) -> list[type]:
    """An object and those within it, each once, the outermost first."""
    found = [answer]
    for each in found:  # the list grows during the loop
        for key in keys_of(each):
            found += [inner for inner in _typed_dicts(key.hint) if inner not in found]
    return found


def schema_of(hint: Any) -> dict[str, Any]:
    """The JSON schema of a type: an object of `answers.objects`, or what its keys hold."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return schema_of(arguments[0]) | {"description": arguments[1]}
    if is_typeddict(hint):
        keys = keys_of(hint)
        return {
            "type": "object",
            "title": hint.__name__,
            "description": inspect.getdoc(hint) or "",
            "properties": {
                key.name: schema_of(key.hint) | {"description": key.about} for key in keys
            },
            "required": [key.name for key in keys if key.required],
        }
    if dataclasses.is_dataclass(hint):
        return _schema_of_dataclass(hint)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        options = [schema_of(option) for option in arguments]
        if all(set(option) == {"type"} for option in options):
            return {"type": [option["type"] for option in options]}
        return {"anyOf": options}
    if origin in (list, tuple, Sequence):
        return {"type": "array", "items": schema_of(arguments[0])}
    if hint is dict or origin is dict:
        return {"type": "object"}
    return {"type": PLAIN[hint]}


def request_schema(ask: Callable[..., Any]) -> dict[str, Any]:
    """The JSON schema of what a question is asked with: its arguments that JSON can hold."""
    hints = typing.get_type_hints(ask, localns=_OTHERS, include_extras=True)
    texts = _argument_texts(inspect.getdoc(ask) or "")
    properties, required = {}, []
    for name, parameter in inspect.signature(ask).parameters.items():
        if name == "lm" or _NotInJson in _parts(hints[name]):
            continue
        properties[name] = schema_of(hints[name])
        if name in texts:
            properties[name]["description"] = texts[name]
        if parameter.default is inspect.Parameter.empty:
            required.append(name)
        elif not dataclasses.is_dataclass(parameter.default):
            default = parameter.default
            properties[name]["default"] = list(default) if default == () else default
    return {
        "type": "object",
        "description": (inspect.getdoc(ask) or "").splitlines()[0],
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def type_name(hint: Any) -> str:
    """A type in words, for the table of an object."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return type_name(arguments[0])
    if origin is Literal:
        return " or ".join(map(repr, arguments))
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(type_name, arguments))
    if origin is list:
        return f"list of {type_name(arguments[0])}"
    return PLAIN.get(hint, getattr(hint, "__name__", str(hint)))


class _NotInJson(TypedDict):
    """Stands for a type that no request in JSON can have."""


_OTHERS = {"Corpus": _NotInJson, "Tensor": _NotInJson}


def _key(name: str, hint: Any) -> Key:
    about, required = "", True
    if typing.get_origin(hint) is Annotated:
        hint, about, *_ = typing.get_args(hint)
    if typing.get_origin(hint) is NotRequired:
        hint, required = typing.get_args(hint)[0], False
    return Key(name, hint, about, required)


def _parts(hint: Any) -> list[Any]:
    """A type and all types that it is made of."""
    return [hint, *(part for inner in typing.get_args(hint) for part in _parts(inner))]


def _typed_dicts(hint: Any) -> list[type]:
    return [part for part in _parts(hint) if is_typeddict(part)]


def _schema_of_dataclass(kind: Any) -> dict[str, Any]:
    hints, texts = typing.get_type_hints(kind), field_docstrings(kind)
    properties = {}
    for field in dataclasses.fields(kind):
        described = {"description": texts.get(field.name, "")}
        properties[field.name] = schema_of(hints[field.name]) | described
    return {
        "type": "object",
        "title": "Rule" if kind is AskedRule else kind.__name__,
        "description": inspect.getdoc(kind) or "",
        "properties": properties,
        "additionalProperties": False,
    }


def _argument_texts(docstring: str) -> dict[str, str]:
    """What a docstring says about arguments: lines such as `n: how many`, and what follows them."""
    found: dict[str, str] = {}
    for names, text in re.findall(r"^((?:\w+, )*\w+): (.+(?:\n    .+)*)", docstring, re.MULTILINE):
        for name in names.split(", "):
            found[name] = " ".join(text.split())
    return found
