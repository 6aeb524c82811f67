"""Dataclasses of settings from untyped values, with names and types checked; checks of numbers."""

from __future__ import annotations

import dataclasses
import difflib
import math
import reprlib
import types
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Annotated, Any, Literal, TypeVar

T = TypeVar("T")

COLDEST = 1e-6  # temperature: logits are divided by it, and must stay finite
LARGEST = 2**63 - 1  # whole number that torch and NumPy can hold
MOST_BITS = 1 << 13  # of a whole number in a message; Python writes no more than 4,300 digits


@dataclass(frozen=True)
class Between:
    """The numbers that a field may have: `Annotated[int, Between(1, 9)]`."""

    least: float
    most: float = math.inf

    def __str__(self) -> str:
        return f"from {self.least}" + ("" if self.most == math.inf else f" to {self.most}")


Count = Annotated[int, Between(0)]
Positive = Annotated[int, Between(1)]


def fill(cls: type[T], values: Any, where: str) -> T:
    """An instance of the dataclass `cls` with the given values; the others keep their defaults.

    Raises ValueError for an unknown name, a missing one that has no default, and a value of the
    wrong type or outside its range; `where` says in the message where the values came from. A whole
    number is accepted where a float is expected, a list where a tuple is, and a section where a
    dataclass is.
    """
    fields = [field for field in dataclasses.fields(cls) if field.init]  # type: ignore[arg-type]
    types_of = typing.get_type_hints(cls, include_extras=True)
    hints = {field.name: types_of[field.name] for field in fields}
    if not isinstance(values, dict):
        raise ValueError(f"{where} must be a section, not {shown(values)}")
    for key in values:
        if key not in hints:
            raise ValueError(f"{where} has an unknown field {shown(key)}{closest(key, hints)}")
    for field in fields:
        required = field.default is field.default_factory is dataclasses.MISSING
        if required and field.name not in values:
            raise ValueError(f"{where} has no field {field.name!r}")
    return cls(**{key: as_type(value, hints[key], where, key) for key, value in values.items()})


def as_type(value: Any, hint: Any, where: str, key: str) -> Any:
    """A value for a field of this type; ValueError if it does not fit."""
    if dataclasses.is_dataclass(hint):
        return fill(hint, value, f"{where}: {key}")  # type: ignore[arg-type]
    if not _fits(value, hint):
        raise ValueError(f"{where}: {key} = {shown(value)} is not of the kind {_name(hint)}")
    if typing.get_origin(hint) is tuple:
        return tuple(value)
    return float(value) if _plain(hint) is float else value


def shown(value: Any) -> str:
    """A value in a message, cut where it is long."""
    return _SHORT.repr(value)


def reason_of(error: Exception) -> str:
    """What an error says, in words for a user where Python's are about its own limits."""
    text = str(error)
    return "a number has too many digits" if text.startswith("Exceeds the limit") else text


def closest(word: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown word: the known one it resembles, or all of them."""
    close = difflib.get_close_matches(word[:100], list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(known)}"


def is_number(value: Any) -> bool:
    """Whether a value is a finite number, and one that a float holds or is close to."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) <= LARGEST
    return isinstance(value, float) and math.isfinite(value)


def check_seed(seed: int) -> None:
    """Raises ValueError for what torch or NumPy does not accept as a seed."""
    if not isinstance(seed, Integral) or not 0 <= seed < 2**63:
        raise ValueError(f"a seed is a number from 0 to {2**63 - 1}, not {shown(seed)}")


def check_whole(number: int, name: str, least: int = 0) -> None:
    """Raises ValueError for what is not a whole number, and for one below `least`."""
    if not isinstance(number, Integral):
        raise ValueError(f"{name} must be a whole number, not {shown(number)}")
    if number < least:
        raise ValueError(f"{name} must be at least {least}, not {shown(number)}")


def check_at_least_one(number: int, name: str) -> None:
    """Raises ValueError for what is not a whole number, and for one below 1."""
    check_whole(number, name, 1)


def check_range(
    value: float,
    name: str,
    least: float = 0.0,
    most: float = math.inf,
    *,
    above: bool = False,
    below: bool = False,
) -> None:
    """Raises ValueError for a number that is not from `least` to `most`, or not finite.

    above, below: whether `least`, or `most`, is itself too small, or too large.
    """
    low = value > least if above else value >= least
    high = value < most if below or most == math.inf else value <= most
    if low and high:
        return
    if most == math.inf:
        limit = "above" if above else "not below" if least == 0 else "at least"
        wanted = f"finite and {limit} {least:g}"
    elif above:
        wanted = f"above {least:g} and {'below' if below else 'at most'} {most:g}"
    else:
        wanted = f"from {least:g} to {'below ' if below else ''}{most:g}"
    raise ValueError(f"{name} must be {wanted}, not {value}")


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
    check_range(temperature, "temperature", COLDEST)
    check_range(top_p, "top_p", 0, 1, above=True)


def _fits(value: Any, hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin is Annotated:
        ranges = [limit for limit in arguments[1:] if isinstance(limit, Between)]
        return _fits(value, arguments[0]) and all(r.least <= value <= r.most for r in ranges)
    if origin is Literal:
        return any(value == one and type(value) is type(one) for one in arguments)
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, option) for option in arguments)
    if origin is dict:
        return isinstance(value, dict) and _all_fit(list(value.values()), arguments[1])
    if origin in (list, tuple):  # of one type; JSON has only lists
        return isinstance(value, list | tuple) and _all_fit(value, arguments[0])
    if hint is float:
        return isinstance(value, float) or (_fits(value, int) and abs(value) <= 2**53)
    if hint is int:
        whole = isinstance(value, int) and not isinstance(value, bool)
        return whole and -LARGEST <= value <= LARGEST
    return isinstance(value, hint)


def _all_fit(values: Sequence[Any], hint: Any) -> bool:
    """Whether all values fit; of millions of one type it is enough to look at the extremes."""
    kind = _plain(hint)
    if kind in (int, str) and set(map(type, values)) == {kind}:
        values = [min(values), max(values)]
    return all(_fits(value, hint) for value in values)


def _plain(hint: Any) -> Any:
    """A type without its range."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


def _name(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return " ".join([_name(arguments[0]), *map(str, arguments[1:])])
    if origin is Literal:
        return " | ".join(map(str, arguments))
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(_name, arguments))
    if origin in (dict, list, tuple):
        kind = "dict" if origin is dict else "list"
        return f"{kind} of {_name(arguments[1 if origin is dict else 0])}"
    return getattr(hint, "__name__", str(hint))


class _Short(reprlib.Repr):
    def repr_int(self, x: int, level: int) -> str:
        if x.bit_length() > MOST_BITS:
            return "a number with too many digits"
        return super().repr_int(x, level)


_SHORT = _Short()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60
