"""The row normaliser of factored transition logits, without the matrix.

    c_i = log Σ_j exp(leaving_i · entering_j)

The matrix of logits is R × Z, far too large to keep. It is made in chunks of rows, and made again
in the backward pass. With p_ij = exp(leaving_i · entering_j − c_i) the gradient of Σ_i g_i c_i is

    d leaving_i  = g_i Σ_j p_ij entering_j
    d entering_j = Σ_i g_i p_ij leaving_i

The first sum does not depend on g, so the forward pass takes it along while it has the chunk.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK_ELEMENTS = 2**22  # logits alive at once: 16 MiB in float32


def row_norm(leaving: Tensor, entering: Tensor) -> Tensor:
    """c (R,) for leaving (R, H) and entering (Z, H); differentiable in both."""
    return _RowNorm.apply(leaving, entering)


class _RowNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, leaving: Tensor, entering: Tensor) -> Tensor:
        norm = leaving.new_empty(len(leaving))
        mean_entering = torch.empty_like(leaving) if any(ctx.needs_input_grad) else None
        for rows in _chunks(leaving, entering):
            logits = leaving[rows] @ entering.T
            largest = logits.amax(1, keepdim=True)
            weights = logits.sub_(largest).exp_()
            total = weights.sum(1, keepdim=True)
            norm[rows] = (largest + total.log()).squeeze(1)
            if mean_entering is not None:
                torch.mm(weights, entering, out=mean_entering[rows])
                mean_entering[rows] /= total
        if mean_entering is not None:
            ctx.save_for_backward(leaving, entering, norm, mean_entering)
        return norm

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        leaving, entering, norm, mean_entering = ctx.saved_tensors
        grad_leaving = grad.unsqueeze(1) * mean_entering
        grad_entering = torch.zeros_like(entering)
        weighted = grad.unsqueeze(1) * leaving
        for rows in _chunks(leaving, entering):
            probs = (leaving[rows] @ entering.T).sub_(norm[rows].unsqueeze(1)).exp_()
            grad_entering.addmm_(probs.T, weighted[rows])
        return grad_leaving, grad_entering


def _chunks(leaving: Tensor, entering: Tensor) -> list[slice]:
    step = max(1, CHUNK_ELEMENTS // len(entering))
    return [slice(i, i + step) for i in range(0, len(leaving), step)]
