"""Rows of a table, or rows and columns of a square one, each taken at most once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bighmm.ops.impl import Impl, use_triton

__all__ = ["take_rows", "take_square"]


def take_rows(table: Tensor, chosen: Tensor, impl: Impl = "torch") -> Tensor:
    """table[chosen] (N, H) for different numbers of rows (N,)."""
    if use_triton(table, impl):
        return _TakeRows.apply(table, chosen)
    return table.index_select(0, chosen)


def take_square(table: Tensor, chosen: Tensor, impl: Impl = "torch") -> Tensor:
    """table[chosen][:, chosen] (N, N) for different rows and columns (N,) of a table (Z, Z).

    The Triton form copies once, and writes each cell of the gradient once.
    """
    if use_triton(table, impl):
        return _TakeSquare.apply(table, chosen)
    return table.index_select(0, chosen).index_select(1, chosen)


class _TakeRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, chosen: Tensor) -> Tensor:
        ctx.save_for_backward(chosen)
        ctx.size = len(table)
        return table.index_select(0, chosen)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        from bighmm.ops.gather import triton

        (chosen,) = ctx.saved_tensors
        return triton.spread(grad.contiguous(), chosen, ctx.size), None


class _TakeSquare(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, chosen: Tensor) -> Tensor:
        from bighmm.ops.gather import triton

        ctx.save_for_backward(chosen)
        ctx.size = len(table)
        return triton.take_square(table.contiguous(), chosen)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        from bighmm.ops.gather import triton

        (chosen,) = ctx.saved_tensors
        return triton.spread_square(grad.contiguous(), chosen, ctx.size), None
