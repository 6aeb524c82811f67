"""The row normaliser in torch, in chunks of rows."""

from __future__ import annotations

import torch
from torch import Tensor

from bighmm.ops import memory


def forward(
    leaving: Tensor, entering: Tensor, bias: Tensor | None, with_mean: bool
) -> tuple[Tensor, Tensor | None]:
    """c (R,) and, if asked for, Σ_j p_ij entering_j (R, H)."""
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


def backward(
    leaving: Tensor, entering: Tensor, bias: Tensor | None, norm: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor]:
    """Σ_i g_i p_ij leaving_i (Z, H) and Σ_i g_i p_ij (Z,)."""
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
    return memory.pieces(len(leaving), len(entering), leaving.device, memory.STREAMED)
