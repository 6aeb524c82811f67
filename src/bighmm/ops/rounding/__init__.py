"""Rounding to the values of bfloat16, with a gradient that passes straight through.

Kernels multiply bfloat16 numbers. A distribution is only normalised if its normaliser and its
cells are computed from the same numbers, so vectors are rounded once, before either is made.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bighmm.ops.impl import use_triton
from bighmm.ops.matmul import has_operand, keep_operand

__all__ = ["round_to_bfloat16"]


def round_to_bfloat16(x: Tensor) -> Tensor:
    """x with the values of bfloat16 and its own type; the gradient is that of the identity."""
    if has_operand(x):
        return x
    if x.dtype != torch.float32 or not use_triton(x):
        return _Rounded.apply(x)
    result, operand = _RoundedTwice.apply(x)
    keep_operand(result, operand)
    return result


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.bfloat16().to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class _RoundedTwice(torch.autograd.Function):
    """In the type of x, and as an operand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        from bighmm.ops.rounding import triton

        result, operand = triton.to_bfloat16_values(x)
        ctx.mark_non_differentiable(operand)
        ctx.set_materialize_grads(False)  # the operand would get zeros
        return result, operand

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: None) -> Tensor:
        return grad
