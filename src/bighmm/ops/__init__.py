"""Operations that have a plain-torch form and, for GPUs, a Triton form beside it.

`impl` is "torch", "triton", or "auto": Triton where the tensors are on a GPU and Triton is there.
Triton's interpreter (TRITON_INTERPRET=1) runs the same kernels on a CPU, for tests.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

Impl = Literal["auto", "torch", "triton"]


def use_triton(tensor: Tensor, impl: str = "auto") -> bool:
    """Whether to take the Triton form; ValueError if it is asked for and cannot be had.

    Any other name than "auto" and "triton" is that of a torch form.
    """
    if impl not in ("auto", "triton"):
        return False
    possible = _triton_installed() and (tensor.is_cuda or _interpreting())
    if impl == "triton" and not possible:
        raise ValueError("impl='triton' needs a GPU and the package triton; use impl='auto'")
    return possible and (impl == "triton" or tensor.is_cuda)


def at_once(elements: int, device: torch.device) -> int:
    """How many numbers a piece of work may hold, where a CPU's may hold `elements`."""
    return elements * (32 if device.type == "cuda" else 1)


def operand(x: Tensor) -> Tensor:
    """What a kernel multiplies: bfloat16 on a GPU; the interpreter cannot, and takes x as it is."""
    return x.bfloat16() if x.is_cuda else x


def product(a: Tensor, b: Tensor, into: Tensor | None = None) -> Tensor:
    """a @ b in float32, whatever the operands are; `into` is a tensor for the result."""
    if a.dtype == torch.float32:
        return torch.mm(a, b, out=into)
    try:
        return torch.mm(a, b, out_dtype=torch.float32, out=into)
    except TypeError:  # torch before 2.8
        found = (a @ b).float()
        return found if into is None else into.copy_(found)


@contextmanager
def beside(device: torch.device) -> Iterator[None]:
    """Work that a GPU may do at the same time as what is asked for until `rejoin`."""
    if device.type != "cuda":
        yield
        return
    stream = _side_stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):
        yield


def rejoin(device: torch.device) -> None:
    """Wait, on the device, for the work `beside`. Its tensors must have been made outside it."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).wait_stream(_side_stream(device))


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)


def rounded(x: Tensor) -> Tensor:
    """x with the values of bfloat16 and its own type; the gradient passes straight through.

    Kernels multiply bfloat16 numbers. A distribution is only normalised if its normaliser and its
    cells are made of the same numbers, so they are rounded once, here, before either is made.
    """
    return _Rounded.apply(x)


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        if x.dtype == torch.float32 and use_triton(x):
            from bighmm.ops import rounding_triton

            return rounding_triton.to_bfloat16_values(x)
        return x.bfloat16().to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


@cache
def _triton_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


@cache
def _interpreting() -> bool:
    import triton

    return bool(triton.knobs.runtime.interpret)
