"""Values that are computed once and kept by the object that they belong to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


@contextmanager
def outliving() -> Iterator[None]:
    """Tensors made in it can be used anywhere, also if `torch.inference_mode` is on now.

    One that is made in that mode can never be part of a gradient or be changed outside of it, so
    what the first caller asked for in it would be of no use to the next one.
    """
    if torch.is_inference_mode_enabled():
        with torch.inference_mode(False), torch.no_grad():
            yield
    else:
        yield


def gradient_is_due(operands: Iterable[Tensor]) -> bool:
    """Whether what is made of these now is part of a gradient."""
    return torch.is_grad_enabled() and any(x.requires_grad for x in operands)


def kept(
    holder: object, name: str, operands: tuple[Tensor, ...], compute: Callable[[], Tensor]
) -> Tensor:
    """What `compute` gives, kept in `holder`.

    A value that was made without gradient does not serve where one is due.
    """
    found: Tensor | None = holder.__dict__.get(name)
    if found is None or (gradient_is_due(operands) and not found.requires_grad):
        with outliving():
            found = holder.__dict__[name] = compute()
    return found
