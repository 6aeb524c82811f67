"""Dataclasses of settings from untyped values, with names and types checked; checks of numbers."""

from __future__ import annotations

import difflib
import math
import types
import typing
from collections.abc import Iterable
from typing import Any, Literal, TypeVar

T = TypeVar("T")

COLDEST = 1e-6  # temperature: logits are divided by it, and must stay finite


def fill(cls: type[T], values: Any, where: str) -> T:
    """An instance of the dataclass `cls` with the given values; the others keep their defaults.

    Raises ValueError for an unknown name or a value of the wrong type; `where` says in the message
    where the values came from. A whole number is accepted where a float is expected.
    """
    hints = typing.get_type_hints(cls)
    if not isinstance(values, dict):
        raise ValueError(f"{where} must be a section, not {values!r}")
    for key, value in values.items():
        if key not in hints:
            raise ValueError(f"{where} has an unknown field {key!r}{closest(key, hints)}")
        if not _fits(value, hints[key]):
            raise ValueError(f"{where}: {key} = {value!r} is not of the kind {_name(hints[key])}")
    return cls(**{k: float(v) if hints[k] is float else v for k, v in values.items()})


def closest(word: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown word: the known one it resembles, or all of them."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(known)}"


def check_seed(seed: int) -> None:
    """Raises ValueError for a number that torch or NumPy does not accept as a seed."""
    if not 0 <= seed < 2**63:
        raise ValueError(f"a seed is a number from 0 to {2**63 - 1}, not {seed}")


def check_at_least_one(number: int, name: str) -> None:
    """Raises ValueError for a number below 1."""
    if number < 1:
        raise ValueError(f"{name} must be at least 1, not {number}")


def check_shares(states: int, blocks: int) -> None:
    """Raises ValueError if blocks cannot share the states equally."""
    if states < 1 or states % blocks:
        below = max(states, 0) // blocks * blocks
        nearest = " or ".join(str(near) for near in (below, below + blocks) if near)
        raise ValueError(
            f"{states} states cannot be shared equally by {blocks} blocks; "
            f"use a multiple of {blocks}, such as {nearest}"
        )


def check_sharpness(temperature: float, top_p: float) -> None:
    """Raises ValueError if a language model cannot be sampled with these."""
    if not (COLDEST <= temperature < math.inf and 0 < top_p <= 1):
        raise ValueError(
            f"temperature must be finite and at least {COLDEST:g} and top_p above 0 and at most 1, "
            f"not {temperature} and {top_p}"
        )


def _fits(value: Any, hint: Any) -> bool:
    origin = typing.get_origin(hint)
    if origin is Literal:
        return value in typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in typing.get_args(hint))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, hint)


def _name(hint: Any) -> str:
    if typing.get_origin(hint) is Literal:
        return " | ".join(map(str, typing.get_args(hint)))
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " | ".join(map(_name, typing.get_args(hint)))
    return getattr(hint, "__name__", str(hint))
