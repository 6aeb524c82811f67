"""Rows of a table, or rows and columns of a square one, each taken at most once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bighmm.ops.impl import Impl, use_triton
from bighmm.ops.matmul import keep_operand

__all__ = ["take_rows", "take_square"]


def take_rows(
    table: Tensor,
    chosen: Tensor,
    impl: Impl = "torch",
    *,
    sparse: bool = False,
    rounded: bool = False,
) -> Tensor:
    """table[chosen] (N, H) for different numbers of rows (N,).

    rounded: whether the Triton form rounds the rows to the values of bfloat16, and keeps them as an
    operand too.
    sparse: whether the gradient of the table is a sparse tensor of these rows alone, in which
    `_indices()` are `chosen` (1, N) and `_values()` (N, H). Nothing of the table's size is then
    made, and the host is not asked for a number. Rows that are taken twice in a step stand there
    twice.
    """
    kernels = use_triton(table, impl)
    if rounded and kernels:
        rows, operand = _TakeRoundedRows.apply(table, chosen, sparse)
        keep_operand(rows, operand)
        return rows
    if sparse or kernels:
        return _TakeRows.apply(table, chosen, sparse)
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
    def forward(ctx: Any, table: Tensor, chosen: Tensor, sparse: bool) -> Tensor:
        ctx.save_for_backward(chosen)
        ctx.shape, ctx.sparse = table.shape, sparse
        return table.index_select(0, chosen)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (chosen,) = ctx.saved_tensors
        return _of_table(grad, chosen, ctx.shape, ctx.sparse), None, None


class _TakeRoundedRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, chosen: Tensor, sparse: bool) -> tuple[Tensor, Tensor]:
        from bighmm.ops.gather import triton

        ctx.save_for_backward(chosen)
        ctx.shape, ctx.sparse = table.shape, sparse
        rows, operand = triton.take_rounded(table, chosen)
        ctx.mark_non_differentiable(operand)
        ctx.set_materialize_grads(False)  # the operand would get zeros
        return rows, operand

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: None) -> tuple[Tensor, None, None]:
        (chosen,) = ctx.saved_tensors
        return _of_table(grad, chosen, ctx.shape, ctx.sparse), None, None


def _of_table(grad: Tensor, chosen: Tensor, shape: torch.Size, sparse: bool) -> Tensor:
    """The gradient of a table from that of rows of it."""
    if not sparse:
        from bighmm.ops.gather import triton

        return triton.spread(grad.contiguous(), chosen, shape[0])
    with torch.sparse.check_sparse_tensor_invariants(False):  # which asks the device
        return torch.sparse_coo_tensor(
            chosen.unsqueeze(0), grad.contiguous(), shape, is_coalesced=True
        )


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
