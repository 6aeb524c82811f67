"""Cached values: computed once and stored on the object that they belong to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def outside_inference_mode() -> Iterator[None]:
    """Context manager that turns `torch.inference_mode` off for the tensors made in it.

    A tensor made in inference mode can never take part in a gradient or be changed outside of that
    mode. A cached one would therefore be useless to a later caller who needs a gradient.
    """
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False), torch.no_grad():
            yield
    else:
        yield


def gradient_is_due(operands: Iterable[Tensor]) -> bool:
    """Whether a result computed from these tensors now would carry a gradient."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in operands)


def cached(
    holder: object, name: str, operands: tuple[Tensor, ...], compute: Callable[[], Tensor]
) -> Tensor:
    """The value of `compute()`, stored as the attribute `name` of `holder`.

    A stored value without gradient is computed again where the operands ask for one.
    """
    found: Tensor | None = holder.__dict__.get(name)
    if found is None or (gradient_is_due(operands) and not found.requires_grad):
        with outside_inference_mode():
            found = holder.__dict__[name] = compute()
    return found
