"""The row normaliser of factored transition logits, without the matrix.

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

from bighmm.ops import Impl, at_once, operand, use_triton

CHUNK_ELEMENTS = 2**22  # logits alive at once: 16 MiB in float32, and more on a GPU


def row_norm(
    leaving: Tensor, entering: Tensor, bias: Tensor | None = None, impl: Impl = "torch"
) -> Tensor:
    """c (R,) for leaving (R, H), entering (Z, H) and bias (Z,); differentiable in all.

    The Triton form multiplies in bfloat16: the operands must have such values (`rounded`).
    """
    return _RowNorm.apply(leaving, entering, bias, use_triton(leaving, impl))


class _RowNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, leaving: Tensor, entering: Tensor, bias: Tensor | None, triton: bool
    ) -> Tensor:
        wanted = any(ctx.needs_input_grad)
        if triton:
            from bighmm.ops import row_norm_triton

            leaving, entering = operand(leaving), operand(entering)
            norm, mean = row_norm_triton.forward(leaving, entering, bias, wanted)
        else:
            norm, mean = _forward(leaving, entering, bias, wanted)
        if wanted:
            ctx.triton = triton
            ctx.save_for_backward(leaving, entering, bias, norm, mean)
        return norm

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        leaving, entering, bias, norm, mean = ctx.saved_tensors
        if ctx.triton:
            from bighmm.ops import row_norm_triton

            of_entering, of_bias = row_norm_triton.backward(
                leaving, entering, bias, norm, grad.contiguous()
            )
        else:
            of_entering, of_bias = _backward(leaving, entering, bias, norm, grad)
        return grad.unsqueeze(1) * mean, of_entering, None if bias is None else of_bias, None


def _forward(
    leaving: Tensor, entering: Tensor, bias: Tensor | None, with_mean: bool
) -> tuple[Tensor, Tensor | None]:
    norm = leaving.new_empty(len(leaving))
    mean = torch.empty_like(leaving) if with_mean else None
    for rows in _chunks(leaving, entering):
        logits = _logits(leaving[rows], entering, bias)
        largest = logits.amax(1, keepdim=True)
        weights = logits.sub_(largest).exp_()
        total = weights.sum(1, keepdim=True)
        norm[rows] = (largest + total.log()).squeeze(1)
        if mean is not None:
            torch.mm(weights, entering, out=mean[rows])
            mean[rows] /= total
    return norm, mean


def _backward(
    leaving: Tensor, entering: Tensor, bias: Tensor | None, norm: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor]:
    of_entering = torch.zeros_like(entering)
    of_bias = entering.new_zeros(len(entering))
    weighted = grad.unsqueeze(1) * leaving
    for rows in _chunks(leaving, entering):
        probs = _logits(leaving[rows], entering, bias).sub_(norm[rows].unsqueeze(1)).exp_()
        of_entering.addmm_(probs.T, weighted[rows])
        if bias is not None:
            of_bias.addmv_(probs.T, grad[rows])
    return of_entering, of_bias


def _logits(leaving: Tensor, entering: Tensor, bias: Tensor | None) -> Tensor:
    return leaving @ entering.T if bias is None else torch.addmm(bias, leaving, entering.T)


def _chunks(leaving: Tensor, entering: Tensor) -> list[slice]:
    step = max(1, at_once(CHUNK_ELEMENTS, leaving.device) // len(entering))
    return [slice(i, i + step) for i in range(0, len(leaving), step)]
