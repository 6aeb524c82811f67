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
def fast_products(device: torch.device, *, may_round: bool = False) -> Iterator[None]:
    """Context in which a CPU multiplies float32 matrices with the library that is fastest for it;
    another device is left as it is.

    That is oneDNN, which torch takes at the precision "medium". On processors of AMD it is twice as
    fast as MKL. Where a processor has instructions for it, it rounds the operands to bfloat16, and
    is used only if it `may_round`. Products of numbers that bfloat16 holds are exact all the same.
    """
    if device.type != "cpu" or (medium_rounds() and not may_round):
        yield
        return
    before = torch.get_float32_matmul_precision()
    _set_medium(True, "medium")
    try:
        yield
    finally:
        _set_medium(False, before)


@contextmanager
def exact_products() -> Iterator[None]:
    """Context within `fast_products` in which operands are not rounded after all."""
    if not (_in_medium and medium_rounds()):
        yield
        return
    _set_medium(False, "highest")
    try:
        yield
    finally:
        _set_medium(True, "medium")


@cache
def medium_rounds() -> bool:
    """Whether this CPU rounds the operands of float32 products at the precision "medium"."""
    draw = torch.Generator().manual_seed(0)
    before = torch.get_float32_matmul_precision()
    try:
        for size in (64, 512):
            a, b = (torch.rand(size, size, generator=draw) for _ in range(2))
            torch.set_float32_matmul_precision("highest")
            exact = a @ b
            torch.set_float32_matmul_precision("medium")
            if not torch.allclose(a @ b, exact, rtol=1e-5):
                return True
    finally:
        torch.set_float32_matmul_precision(before)
    return False


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


_in_medium = False


def _set_medium(medium: bool, precision: str) -> None:
    global _in_medium
    _in_medium = medium
    torch.set_float32_matmul_precision(precision)


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)
