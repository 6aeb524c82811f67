"""Sequences as people have them: lists, arrays, tensors, columns, with masks and gaps."""

from __future__ import annotations

import warnings
from typing import Any, Literal, NamedTuple

import numpy as np
from torch import Tensor

MISSING = -1
MASKED = type(np.ma.masked)  # of what NumPy has for a single masked value
LARGEST = 2**63 - 1
SCALARS = (int, float, str, np.generic, type(None))
FORMS = "a list of arrays or one array of whole numbers, or of strings"


class Sequence(NamedTuple):
    values: np.ndarray  # (T,) int64, or strings as objects; anything where they are missing
    missing: np.ndarray  # (T,) bool
    kind: Literal["numbers", "strings", "unknown"]  # unknown where all are missing


class Given(NamedTuple):
    """Sequences as they were given, with what they are made of checked."""

    sequences: list[Sequence]
    joined: bool  # they came as one array

    @property
    def kind(self) -> Literal["numbers", "strings", "unknown"]:
        """What all of them are made of; ValueError if some are numbers and others strings."""
        kinds = {sequence.kind for sequence in self.sequences} - {"unknown"}
        if len(kinds) > 1:
            raise ValueError("some sequences have numbers and others strings; use one kind")
        return kinds.pop() if kinds else "unknown"


def read(X: Any, lengths: Any = None) -> Given:
    """One sequence (T,) or as a column (T, 1), several of them end to end with their `lengths`, a
    list of sequences, or an array (N, T) of N sequences with T > 1.

    A list of lists that have one symbol each is a column. A symbol is missing where it is None,
    NaN or -1, or where a mask of NumPy says so.

    Raises ValueError for anything else, for symbols that are neither whole numbers from 0 on nor
    strings, and for lengths that do not add up to the symbols.
    """
    if hasattr(X, "tocsr"):
        raise ValueError("sparse matrices are not supported; give arrays of symbols")
    if lengths is not None:
        return _cut(_sequence(_joined(X), 0), lengths)
    if not isinstance(X, (list, tuple, np.ma.MaskedArray)):
        given, X = X, _array(X)
        if X.ndim == 0:
            raise ValueError(f"sequences must be {FORMS}, not {type(given).__name__}")
    if len(X) == 0:
        raise ValueError("there are no sequences")
    if _is_column(X):
        X = [row[0] for row in X]
    if _are_several(X):
        return Given([_sequence(row, number) for number, row in enumerate(X)], joined=False)
    return Given([_sequence(X, 0)], joined=True)


def warn_of_lengths(y: Any, lengths: Any, joined: bool, positions: int) -> None:
    """Warn where the second argument looks like the lengths that hmmlearn takes there."""
    if y is None or lengths is not None or not joined:
        return
    try:
        sizes = np.asarray(y)
    except ValueError:  # lists of unequal length, which are no lengths
        return
    if sizes.ndim != 1 or sizes.dtype.kind not in "iu" or (sizes < 1).any():
        return
    if sizes.sum() == positions:
        warnings.warn(
            "y is not used; if these are lengths of sequences, give them as lengths=…",
            UserWarning,
            stacklevel=3,
        )


def _joined(X: Any) -> Any:
    return [row[0] for row in X] if _is_column(X) else X


def _cut(stream: Sequence, lengths: Any) -> Given:
    """The sequences that stand end to end."""
    sizes = np.asarray(lengths)
    if sizes.ndim != 1 or sizes.dtype.kind not in "iu" or (sizes < 0).any():
        raise ValueError("lengths must be a list of whole numbers, one for each sequence")
    if sizes.sum() != len(stream.values):
        raise ValueError(
            f"lengths add up to {sizes.sum()}, but there are {len(stream.values)} symbols"
        )
    places = np.cumsum(sizes)[:-1]
    values, missing = np.split(stream.values, places), np.split(stream.missing, places)
    parts = zip(values, missing, strict=True)
    return Given([Sequence(*part, stream.kind) for part in parts], joined=True)


def _is_column(X: Any) -> bool:
    """Whether this is a list of lists that have one symbol each."""
    if not isinstance(X, (list, tuple)) or len(X) < 2:
        return False
    return all(isinstance(row, (list, tuple)) and len(row) == 1 for row in X)


def _are_several(X: Any) -> bool:
    if isinstance(X, (list, tuple)) or (X.dtype == object and X.ndim == 1):
        kinds = {*map(type, X)}
        if any(issubclass(kind, (list, tuple)) for kind in kinds):
            return True
        scalars = {kind for kind in kinds if issubclass(kind, SCALARS)}
        return any(type(row) not in scalars and np.ndim(row) > 0 for row in X)
    return X.ndim > 1 and (X.ndim > 2 or X.shape[1] != 1)


def _array(values: Any) -> np.ndarray:
    """As NumPy has it, with its mask; strings and None are objects that are left as they are."""
    if isinstance(values, np.ma.MaskedArray):
        return values
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    elif isinstance(values, (list, tuple)) and MASKED in {*map(type, values)}:
        values = [None if value is np.ma.masked else value for value in values]
    try:
        found = np.asarray(values)
    except ValueError:  # lists of unequal length inside
        return np.empty((0, 0), object)
    if found.dtype.kind == "T":  # NumPy's strings of any length
        found = found.astype(object)
    if found.dtype.kind in "US":  # numbers or NaN may have become strings, too
        found = np.array(values, dtype=object)
    return found


def _sequence(values: Any, number: int) -> Sequence:
    row = _array(values)
    masked = np.ma.getmaskarray(row) if isinstance(row, np.ma.MaskedArray) else None
    row = np.ma.getdata(row)
    if row.ndim == 2 and row.shape[1] == 1:
        row, masked = row[:, 0], None if masked is None else masked[:, 0]
    if row.ndim != 1:
        raise _not_symbols(row, number)
    known = np.ones(len(row), bool) if masked is None else ~masked
    if row.dtype.kind in "US":  # of an array with a mask
        row = row.astype(object)
    if row.dtype == object:
        return _of_objects(row, known, number)
    if len(row) == 0:
        return Sequence(np.empty(0, np.int64), ~known, "unknown")
    if row.dtype.kind == "f":
        known &= ~np.isnan(row)
        shown = np.where(known, row, 0.0)
        if not np.isfinite(shown).all() or (shown % 1 != 0).any():
            raise _not_symbols(row, number)
    elif row.dtype.kind not in "iu":
        raise _not_symbols(row, number)
    return _numbers(row, known, number)


def _of_objects(row: np.ndarray, known: np.ndarray, number: int) -> Sequence:
    """Strings or whole numbers, among which may be None, NaN, and pandas' NA."""
    if {*map(type, row)} != {str}:
        known = known & np.array([not _is_missing(value) for value in row], bool)
    present = row[known]
    if all(issubclass(kind, str) for kind in {*map(type, present)}):
        return Sequence(row, ~known, "strings" if len(present) else "unknown")
    if not all(_is_whole(value) for value in present):
        raise _not_symbols(row, number)
    return _numbers(row, known, number)


def _numbers(row: np.ndarray, known: np.ndarray, number: int) -> Sequence:
    """Whole numbers of any type; those that are not known or MISSING are missing."""
    found, present = np.full(len(row), MISSING, np.int64), row[known]
    if len(present):
        least, most = int(present.min()), int(present.max())
        if least < MISSING:
            raise ValueError(
                f"sequence {number} has the symbol {least}; symbols go from 0 on, and -1 is one "
                "that is missing"
            )
        if most > LARGEST:
            raise ValueError(f"sequence {number} has the symbol {most}, which is too large")
        found[known] = present
    missing = found == MISSING
    return Sequence(found, missing, "unknown" if missing.all() else "numbers")


def _is_missing(value: Any) -> bool:
    if value is None or value is np.ma.masked or type(value).__name__ == "NAType":
        return True
    return isinstance(value, (float, np.floating)) and bool(np.isnan(value))


def _is_whole(value: Any) -> bool:
    if isinstance(value, (float, np.floating)):
        return float(value).is_integer()
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _not_symbols(row: np.ndarray, number: int) -> ValueError:
    if row.dtype.kind == "c":
        return ValueError(f"Complex data not supported, as in sequence {number}")
    return ValueError(
        f"sequence {number} must be one list of whole numbers, or of strings, not {row.dtype} of "
        f"shape {row.shape}"
    )
