"""`chain`'s sum over all state paths with Triton kernels.

Nothing here asks the host for a number, so that a graph can capture it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bighmm.infer.numerics import scale_rows

if TYPE_CHECKING:
    from bighmm.ops.chain_triton import Sweeps


def chain_log_sum(first: Tensor, tiles: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """As in `chain`, for float32 and at least one tile."""
    return _ChainLogSum.apply(first, tiles, lengths)


def at_the_end(sweeps: Sweeps, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """log Z (B,) and the forward vector (B, K) after each row's `lengths` tiles."""
    forward, peaks, _ = sweeps
    end = lengths.long().view(-1, 1)
    vector = forward.gather(1, end.unsqueeze(2).expand(-1, 1, forward.shape[2])).squeeze(1)
    before = peaks.sum(1) - peaks.gather(1, end).squeeze(1)
    return vector.logsumexp(1) + before, vector


class _ChainLogSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, first: Tensor, tiles: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        from bighmm.ops import chain_triton as kernels

        moves, tiles = (lengths - 1).int(), tiles.contiguous()
        made = kernels.Tiles(tiles, tiles, tiles)
        if tiles.shape[-1] <= kernels.CHUNK:
            made = kernels.Tiles(tiles, *scale_rows(tiles))
        wanted = any(ctx.needs_input_grad)
        sweeps = kernels.sweep(moves, first.contiguous(), made, wanted)
        log_sum, vector = at_the_end(sweeps, moves)
        if wanted:
            ctx.save_for_backward(moves, tiles, *sweeps, log_sum)
        ctx.mark_non_differentiable(vector)
        return log_sum, vector

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None]:
        from bighmm.ops import chain_triton as kernels

        moves, tiles, *swept, log_sum = ctx.saved_tensors
        weight = torch.where(log_sum > -torch.inf, grad, 0.0)
        return *kernels.counts(moves, tiles, kernels.Sweeps(*swept), weight), None
