"""The row normaliser of factored logits, without the matrix of logits.

    c_i = log Σ_j exp(leaving_i · entering_j + bias_j)

The matrix of logits is R × Z, far too large to keep. It is made in chunks of rows, and made again
in the backward pass. With p_ij = exp(leaving_i · entering_j + bias_j − c_i) the gradient of
Σ_i g_i c_i is

    d leaving_i  = g_i Σ_j p_ij entering_j
    d entering_j = Σ_i g_i p_ij leaving_i        d bias_j = Σ_i g_i p_ij

The first sum does not depend on g, so the forward pass takes it along while it has the chunk.
The same serves for emissions that every state can make: rows are states and columns are words.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bighmm.ops.impl import Impl, use_triton
from bighmm.ops.matmul import as_operand
from bighmm.ops.row_norm import plain

__all__ = ["row_norm"]


def row_norm(
    leaving: Tensor, entering: Tensor, bias: Tensor | None = None, impl: Impl = "torch"
) -> Tensor:
    """c (R,) for leaving (R, H), entering (Z, H) and bias (Z,); differentiable in all.

    The Triton form multiplies in bfloat16: the operands must have such values already (see
    `rounding`).
    """
    return _RowNorm.apply(leaving, entering, bias, use_triton(leaving, impl))


class _RowNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, leaving: Tensor, entering: Tensor, bias: Tensor | None, in_triton: bool
    ) -> Tensor:
        with_mean = any(ctx.needs_input_grad)
        if in_triton:
            from bighmm.ops.row_norm import triton

            leaving, entering = as_operand(leaving), as_operand(entering)
            norm, mean = triton.forward(leaving, entering, bias, with_mean)
        else:
            norm, mean = plain.forward(leaving, entering, bias, with_mean)
        if with_mean:
            ctx.in_triton = in_triton
            ctx.save_for_backward(leaving, entering, bias, norm, mean)
        return norm

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        leaving, entering, bias, norm, mean = ctx.saved_tensors
        if ctx.in_triton:
            from bighmm.ops.row_norm import triton

            of_entering, of_bias = triton.backward(leaving, entering, bias, norm, grad.contiguous())
        else:
            of_entering, of_bias = plain.backward(leaving, entering, bias, norm, grad)
        return grad.unsqueeze(1) * mean, of_entering, None if bias is None else of_bias, None
