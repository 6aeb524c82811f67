"""Cached values, and what inference mode and copies do to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

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
    cache = _cache_of(holder)
    found: Tensor | None = cache.get(name)
    if found is None or (needs_gradient(operands) and not found.requires_grad):
        with outside_inference_mode():
            found = cache[name] = compute()
    return found


def cached_object(holder: object, name: str, compute: Callable[[], T]) -> T:
    """The value of `compute()`, stored in `holder` under `name` and computed once."""
    cache = _cache_of(holder)
    if name not in cache:
        with outside_inference_mode():
            cache[name] = compute()
    return cache[name]


def is_cached(holder: object, name: str) -> bool:
    """Whether a value has been computed."""
    return name in _cache_of(holder)


class _Cache(dict[str, Any]):
    """Cached values by name; pickles and deep copies of it are empty."""

    def __reduce__(self) -> tuple[type[_Cache], tuple[()]]:
        return _Cache, ()


def _cache_of(holder: object) -> _Cache:
    found: _Cache | None = holder.__dict__.get("_cached")
    return holder.__dict__.setdefault("_cached", _Cache()) if found is None else found
