"""JSON files, read with limits and checked against a dataclass; hashes of their own content.

Whatever is wrong with a file is one sentence that names it. Beside what is no JSON, a file is
refused if it is too large or nested too deeply, if it has too many values, if an object has a name
twice, or if a number is not finite.

A *sealed* file has one more field, `SEAL`: the SHA-256 of the others. So a changed value is noticed
even if it is a possible one. Files from before have no seal and are read without that check.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any, TypeVar

from bighmm.base.reading import read_bytes
from bighmm.base.settings import fill, reason_of, shown

SEAL = "seal"
MOST_JSON = 1 << 25  # bytes of a JSON file
MOST_NESTED = 1 << 21  # objects and lists, which take up to 30 times the memory of their text
MOST_COMMAS = 1 << 23  # values that follow others, which take up to 12 times that
DEEPEST = 64  # objects and lists within each other
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

T = TypeVar("T")


def read_json(path: Path, most: int = MOST_JSON, *, finite: bool = True) -> Any:
    """The content of a JSON file; ValueError with one sentence if it is missing or damaged.

    finite: whether NaN and infinity are refused.
    """
    if not path.is_symlink() and not path.exists():
        raise ValueError(f"{path.parent} has no {path.name}; it is not complete")
    return parse_json(read_bytes(path, most), f"{path} is damaged", finite=finite)


def read_object(path: Path, *, finite: bool = True) -> dict[str, Any]:
    """The JSON object in a file, without its seal; ValueError if the seal is broken."""
    return read_sealed(path, finite=finite)[0]


def read_sealed(path: Path, *, finite: bool = True) -> tuple[dict[str, Any], bool]:
    """As `read_object`, and whether there was a seal."""
    value = read_json(path, finite=finite)
    if not isinstance(value, dict):
        raise ValueError(f"{path} is damaged: it holds {shown(value)}, not a JSON object")
    expected = value.pop(SEAL, None)
    if expected is not None and expected != _seal(value):
        raise ValueError(f"{path} is damaged: its content is not what was saved")
    return value, expected is not None


def read_record(cls: type[T], path: Path, *, finite: bool = True) -> T:
    """The JSON object in a file as an instance of a dataclass, as `fill` makes it."""
    return fill(cls, read_object(path, finite=finite), f"{path} is damaged: it")


def sealed(value: dict[str, Any]) -> dict[str, Any]:
    """The same object with a seal, to be written."""
    return {**value, SEAL: _seal(value)}


def parse_json(content: bytes | str, wrong: str, *, finite: bool = True) -> Any:
    """The value of a JSON text; `wrong` begins the message of the ValueError if there is none."""
    raw = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    nested = raw.count(b"[") + raw.count(b"{")
    if nested > MOST_NESTED:
        raise ValueError(f"{wrong}: it has more than {MOST_NESTED:,} objects and lists")
    if raw.count(b",") > MOST_COMMAS:
        raise ValueError(f"{wrong}: it has more than {MOST_COMMAS:,} values")
    try:
        value = json.loads(
            raw.decode("utf-8-sig"),
            object_pairs_hook=_object,
            parse_constant=_refused if finite else None,
            parse_float=_finite if finite else None,
        )
    except RecursionError:
        raise ValueError(f"{wrong}: {_too_deep()}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{wrong}: it is not UTF-8 at byte {error.start}") from None
    except ValueError as error:
        raise ValueError(f"{wrong}: it is not JSON ({reason_of(error)})") from None
    odd = _SURROGATE.search(raw) is not None
    if nested > DEEPEST or odd:
        _check(value, wrong)
    return value


def _seal(value: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the name {shown(twice)} is there twice")
    return found


def _finite(digits: str) -> float:
    number = float(digits)
    return number if math.isfinite(number) else _refused(digits)


def _refused(name: str) -> float:
    raise ValueError(f"{name[:20]} is not a finite number")


def _too_deep() -> str:
    return f"objects and lists are nested more than {DEEPEST} deep"


def _check(value: Any, wrong: str) -> None:
    """Raises ValueError for what is nested too deeply, and for half characters in strings."""
    level, depth = [value], 0
    while level:
        below: list[Any] = []
        for one in level:
            if isinstance(one, dict | list) and depth == DEEPEST:
                raise ValueError(f"{wrong}: {_too_deep()}")
            if isinstance(one, dict):
                below += one
                below += one.values()
            elif isinstance(one, list):
                below += one
            elif isinstance(one, str):
                try:
                    one.encode()
                except UnicodeEncodeError:
                    raise ValueError(f"{wrong}: {shown(one)} is not Unicode text") from None
        level, depth = below, depth + 1
