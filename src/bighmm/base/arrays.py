"""Tensors from what people have: tensors, NumPy arrays, and lists of either, without warnings."""

from __future__ import annotations

from numbers import Number
from typing import Any

import numpy as np
import torch
from torch import Tensor


def as_tensor(value: Any) -> Tensor:
    """A tensor of numbers, an array, or lists of them; it may share memory with what was given.

    torch warns of lists of arrays and of arrays that cannot be written to, and refuses lists of
    tensors and reversed arrays. Raises ValueError for what is not one table of numbers, and where
    a mask of NumPy hides some of them.
    """
    if isinstance(value, Tensor):
        return value
    if isinstance(value, list | tuple | range) and any(map(_is_array, value)):
        rows = [as_tensor(row).cpu() for row in value]
        if len({row.shape for row in rows}) > 1:
            raise ValueError(f"rows of different lengths are no table: {_sizes(rows)}")
        return torch.stack(rows)
    if (text := _text_in(value)) is not None:
        raise ValueError(
            f"token ids were expected, not the text {_shown(text)}; `HMMLM.encode` gives the ids, "
            "and the questions of `HMMLM` take text"
        )
    if _is_array(value):
        if np.ma.is_masked(value):
            raise ValueError(
                "a mask of NumPy hides some of these numbers; questions about gaps, such as "
                "`known_log_prob`, read them as gaps, and others need all of them"
            )
        value = _plain(np.asarray(value))
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise ValueError(f"numbers were expected, not {_shown(value)}") from None


def without_mask(value: Any, filling: int) -> Any:
    """An array, or a list of them, with a number in the place of what masks of NumPy hide."""
    if value is np.ma.masked:
        return filling
    if isinstance(value, np.ma.MaskedArray):
        array = np.array(value.data)
        if array.dtype.kind in "iu":  # small and unsigned types have no room for every number
            array = array.astype(np.int64)
        array[np.ma.getmaskarray(value)] = filling
        return array
    rows = list(value) if isinstance(value, np.ndarray) and value.dtype == object else value
    if isinstance(rows, list | tuple) and any(map(_may_have_mask, {*map(type, rows)})):
        return [without_mask(row, filling) for row in rows]
    return value


def as_array(tensor: Tensor) -> np.ndarray:
    """The numbers of a tensor on the CPU, in C order; they may share memory with it."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    return tensor.contiguous().numpy()


def as_rows(value: Any) -> list[Tensor] | None:
    """The rows of a list of sequences of numbers, each (T,), if it is one; they are on the CPU."""
    if isinstance(value, np.ndarray) and value.dtype == object:
        value = list(value)
    if not isinstance(value, list | tuple) or not value or isinstance(value[0], Number):
        return None
    rows = [as_tensor(row).cpu() for row in value]
    return rows if all(row.dim() == 1 for row in rows) else None


def _is_array(value: Any) -> bool:
    if isinstance(value, np.generic):  # a number, which torch takes for one
        return False
    return isinstance(value, Tensor) or hasattr(value, "__array__")


def _may_have_mask(kind: type) -> bool:
    return issubclass(kind, list | tuple | np.ma.MaskedArray)


def _text_in(value: Any) -> str | None:
    """A string, or one that begins a list; None where there is none."""
    if isinstance(value, list | tuple) and value:
        return _text_in(value[0])
    return value if isinstance(value, str) else None


def _plain(array: np.ndarray) -> np.ndarray:
    """The same numbers in a form that torch takes as it is."""
    if not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    reversed_ = any(stride < 0 for stride in array.strides)
    return array.copy() if reversed_ or not array.flags.writeable else array


def _sizes(rows: list[Tensor]) -> str:
    return ", ".join(str(tuple(row.shape)) for row in rows[:4])


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
