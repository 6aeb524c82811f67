"""Products of bfloat16 numbers with float32 sums, and work on a second stream of a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor


def as_operand(x: Tensor) -> Tensor:
    """x as kernels multiply it: in bfloat16 on a GPU, unchanged for Triton's interpreter."""
    operand = getattr(x, "operand", None)
    if operand is not None:
        return operand
    return x.bfloat16() if x.is_cuda else x


def keep_operand(x: Tensor, operand: Tensor) -> None:
    """Let `as_operand` answer with `operand`, which the kernel that made x wrote beside it.

    Both have the same values, those of bfloat16. The copy belongs to this tensor alone, not to
    views of it, and x must not be changed in place.
    """
    x.operand = operand  # type: ignore[attr-defined]


def has_operand(x: Tensor) -> bool:
    """Whether x came with its operand, so that its values are those of bfloat16."""
    return getattr(x, "operand", None) is not None


def empty_operand(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """For a kernel that writes an operand: bfloat16 on a GPU, float32 for the interpreter."""
    kind = torch.bfloat16 if device.type == "cuda" else torch.float32
    return torch.empty(shape, dtype=kind, device=device)


def matmul(a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
    """a @ b in float32, whatever the type of the operands; written to `out` where given."""
    if a.dtype == torch.float32:
        return torch.mm(a, b, out=out)
    try:
        return torch.mm(a, b, out_dtype=torch.float32, out=out)
    except TypeError:  # torch before 2.8
        found = (a @ b).float()
        return found if out is None else out.copy_(found)


@contextmanager
def on_side_stream(device: torch.device) -> Iterator[None]:
    """Run the enclosed work at the same time as what follows, until `join_side_stream`.

    Tensors that the work writes to must have been made outside.
    """
    if device.type != "cuda":
        yield
        return
    stream = _side_stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield


def join_side_stream(device: torch.device) -> None:
    """Let the current stream wait for the work on the side stream; the host does not wait."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).wait_stream(_side_stream(device))


def being_captured(result: Tensor) -> bool:
    """Whether `result` is being made inside a CUDA graph capture, so that it cannot be read."""
    return result.is_cuda and torch.cuda.is_current_stream_capturing()


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
