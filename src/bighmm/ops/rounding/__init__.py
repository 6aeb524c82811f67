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

__all__ = ["round_to_bfloat16"]


def round_to_bfloat16(x: Tensor) -> Tensor:
    """x with the values of bfloat16 and its own type; the gradient is that of the identity."""
    return _Rounded.apply(x)


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        if x.dtype == torch.float32 and use_triton(x):
            from bighmm.ops.rounding import triton

            return triton.to_bfloat16_values(x)
        return x.bfloat16().to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad
