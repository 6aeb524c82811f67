"""Sums over all state paths of a chain of K × K potentials.

    log Z = log Σ_{z_0 … z_S} exp(first[z_0] + Σ_s tiles[s][z_{s-1}, z_s])

The state vector is kept in log space and each step is a product in probability space: every row of
a tile is scaled by its own maximum, which is folded into the vector. A step whose result comes
near the smallest number of the type, where mass may have been lost, is done again in log space, so
the result is right for any finite potentials. The gradient of log Z is the expected number of uses
of each potential, from one forward and one backward sweep.

B rows, P = S + 1 positions, K states. `lengths` (B,) counts the positions of each row, at least 1.
The forms are `plain` (a loop over positions), `tree` (log₂ S rounds of batched products) and
`triton`, which never asks the host for a number and can be captured in a graph.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bighmm.ops.chain import plain, tree
from bighmm.ops.impl import use_triton
from bighmm.ops.log_matmul import scale_rows

__all__ = ["chain_log_sum"]


def chain_log_sum(
    first: Tensor, tiles: Tensor, lengths: Tensor, impl: str = "auto"
) -> tuple[Tensor, Tensor]:
    """log Z (B,) and log_alpha (B, K) at each row's last position, which has no gradient.

    first (B, K), tiles (B, S, K, K). The gradient of log Z is the expected counts.
    impl: as in `ops`, in float32; "loop" and "tree" name the two torch forms.
    """
    if use_triton(first, impl) and first.dtype == torch.float32 and tiles.numel() > 0:
        return _ChainTriton.apply(first, tiles, lengths)
    return _ChainTorch.apply(first, tiles, lengths, impl == "tree")


class _ChainTorch(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, first: Tensor, tiles: Tensor, lengths: Tensor, as_tree: bool
    ) -> tuple[Tensor, Tensor]:
        if as_tree:
            log_alpha, log_beta = tree.both_sweeps(first, tiles, lengths)
            gained = torch.zeros_like(log_alpha[..., 0])
        else:
            log_alpha, gained = plain.sweep_forward(first, tiles, lengths)
            log_beta = None
        place = (lengths - 1).view(-1, 1, 1).expand(-1, 1, first.shape[1])
        at_end = log_alpha.gather(1, place).squeeze(1)
        log_sum = gained.sum(1) + at_end.logsumexp(1)
        ctx.save_for_backward(tiles, lengths, log_alpha, gained, log_beta, log_sum)
        ctx.mark_non_differentiable(at_end)
        return log_sum, at_end

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None, None]:
        tiles, lengths, log_alpha, gained, log_beta, log_sum = ctx.saved_tensors
        if log_beta is None:
            log_beta = plain.sweep_backward(tiles, lengths, torch.zeros_like(log_alpha[:, 0]))
        weight = torch.where(log_sum > -torch.inf, grad, 0.0)
        sweeps = (log_alpha, gained, log_beta)
        return *plain.expected_counts(tiles, lengths, sweeps, weight), None, None


class _ChainTriton(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, first: Tensor, tiles: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        from bighmm.ops.chain import triton

        moves, tiles = (lengths - 1).int(), tiles.contiguous()
        made, with_backward = triton.Tiles(tiles, *scale_rows(tiles)), any(ctx.needs_input_grad)
        sweeps = triton.sweep(moves, first.contiguous(), made, with_backward)
        log_sum, vector = triton.ends(moves, sweeps)
        if with_backward:
            ctx.save_for_backward(moves, tiles, *sweeps, log_sum)
        ctx.mark_non_differentiable(vector)
        return log_sum, vector

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor, None]:
        from bighmm.ops.chain import triton

        moves, tiles, *swept, log_sum = ctx.saved_tensors
        weight = torch.where(log_sum > -torch.inf, grad, 0.0)
        return *triton.counts(moves, tiles, triton.Sweeps(*swept), weight), None
