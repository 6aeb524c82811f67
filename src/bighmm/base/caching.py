"""Cached values, and what inference mode does to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


@contextmanager
def outside_inference_mode() -> Iterator[None]:
    """Context in which new tensors can be used anywhere, also if `torch.inference_mode` is on.

    A tensor that is made in inference mode can never be part of a gradient or be changed outside of
    it. A cached one would be of no use to the next caller.
    """
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False), torch.no_grad():
            yield
    else:
        yield


def needs_gradient(operands: Iterable[Tensor]) -> bool:
    """Whether what is computed from these tensors now becomes part of a gradient."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in operands)


def cached(
    holder: object, name: str, operands: tuple[Tensor, ...], compute: Callable[[], Tensor]
) -> Tensor:
    """The value of `compute()`, stored in `holder` under `name` and computed once.

    A value that was computed without a gradient is computed again where one is needed.
    """
    found: Tensor | None = holder.__dict__.get(name)
    if found is None or (needs_gradient(operands) and not found.requires_grad):
        with outside_inference_mode():
            found = holder.__dict__[name] = compute()
    return found


def cached_object(holder: object, name: str, compute: Callable[[], T]) -> T:
    """The value of `compute()`, stored in `holder` under `name` and computed once."""
    if name not in holder.__dict__:
        with outside_inference_mode():
            holder.__dict__[name] = compute()
    return holder.__dict__[name]
