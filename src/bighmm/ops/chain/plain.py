"""Sums over all state paths of a chain of K × K potentials.

    log Z = log Σ_{z_0 … z_S} exp(first[z_0] + Σ_s tiles[s][z_{s-1}, z_s])

The state vector is kept in log space and each step is a product in probability space: every row of
a tile is scaled by its own maximum, which is folded into the vector. A step whose result comes
near the smallest number of the type, where mass may have been lost, is done again in log space, so
the result is right for any finite potentials. The gradient of log Z is the expected number of uses
of each potential, from one forward and one backward sweep. Shape letters are those of `hmm.py`;
P = S + 1 positions. `lengths` (B,) counts the positions of each row, at least 1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bighmm.infer import chain_triton, tree
from bighmm.infer.numerics import SMALLEST_SUM, finite_or_zero, scale_rows
from bighmm.ops import use_triton


def chain_log_sum(
    first: Tensor, tiles: Tensor, lengths: Tensor, impl: str = "auto"
) -> tuple[Tensor, Tensor]:
    """log Z (B,) and log_alpha (B, K) at each row's last position, which has no gradient.

    first (B, K), tiles (B, S, K, K). The gradient of log Z is the expected counts.
    impl: as in `kernels`, in float32; "loop" and "tree" are the two torch forms.
    """
    if use_triton(first, impl) and first.dtype == torch.float32 and tiles.numel() > 0:
        return chain_triton.chain_log_sum(first, tiles, lengths)
    return _ChainLogSum.apply(first, tiles, lengths, impl == "tree")


def sweep_forward(first: Tensor, tiles: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """log_alpha (B, P, K): the log-sum over all paths that end in each state at each position.

    So that a long chain does not cost precision, the largest entry at every position is moved into
    `gained` (B, P): the log-sum is log_alpha + the sum of `gained` up to there. Past the end of a
    row its last value is repeated, and nothing is gained.
    """
    peaks, scaled = scale_rows(tiles)
    log_alpha = first
    result, gained = [first], [torch.zeros_like(first[:, :1])]
    for s in range(tiles.shape[1]):
        moved = _through_columns(log_alpha, tiles[:, s], peaks[:, s], scaled[:, s])
        top = finite_or_zero(moved.amax(1, keepdim=True))
        inside = (s + 1 < lengths).unsqueeze(1)
        log_alpha = torch.where(inside, moved - top, log_alpha)
        result.append(log_alpha)
        gained.append(torch.where(inside, top, 0.0))
    return torch.stack(result, dim=1), torch.cat(gained, dim=1)


def sweep_backward(tiles: Tensor, lengths: Tensor, last: Tensor) -> Tensor:
    """log_beta (B, P, K): the log-sum over all continuations from each state at each position,

    up to a factor per position, which makes the largest entry 0 except at the last one.
    `last` (B, K) is its value at each row's last position (zero where the row ends there).
    """
    peaks, scaled = scale_rows(tiles)
    log_beta = last
    result = [last]
    for s in reversed(range(tiles.shape[1])):
        moved = _through_rows(log_beta, tiles[:, s], peaks[:, s], scaled[:, s])
        moved = moved - finite_or_zero(moved.amax(1, keepdim=True))
        log_beta = torch.where((s + 1 < lengths).unsqueeze(1), moved, last)
        result.append(log_beta)
    return torch.stack(result[::-1], dim=1)


class _ChainLogSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, first: Tensor, tiles: Tensor, lengths: Tensor, as_tree: bool
    ) -> tuple[Tensor, Tensor]:
        if as_tree:
            log_alpha, log_beta = tree.both_sweeps(first, tiles, lengths)
            gained = torch.zeros_like(log_alpha[..., 0])
        else:
            log_alpha, gained = sweep_forward(first, tiles, lengths)
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
            log_beta = sweep_backward(tiles, lengths, torch.zeros_like(log_alpha[:, 0]))
        weight = torch.where(log_sum > -torch.inf, grad, 0.0)
        joint = log_alpha + log_beta
        total = finite_or_zero(joint.logsumexp(2))  # (B, P), of the paths through each position
        steps = torch.arange(tiles.shape[1], device=tiles.device)
        outside = steps + 1 >= lengths.unsqueeze(1)
        left = log_alpha[:, :-1] - (gained + total)[:, 1:].unsqueeze(2)
        left = left.masked_fill(outside.unsqueeze(2), -torch.inf)
        counts = (tiles + left.unsqueeze(3)).add_(log_beta[:, 1:].unsqueeze(2)).exp_()
        counts.mul_(weight.view(-1, 1, 1, 1))
        at_first = (joint[:, 0] - total[:, :1]).exp()
        return at_first * weight.unsqueeze(1), counts, None, None


def _through_columns(log_alpha: Tensor, tile: Tensor, peaks: Tensor, scaled: Tensor) -> Tensor:
    """log Σ_i exp(log_alpha_i + tile_ij): (B, K)."""
    weights = log_alpha + peaks
    top = finite_or_zero(weights.amax(1, keepdim=True))
    mass = torch.bmm((weights - top).exp().unsqueeze(1), scaled).squeeze(1)
    result = mass.log() + top
    low = mass < SMALLEST_SUM[mass.dtype]
    if bool(low.any()):
        low &= tile.amax(1) > -torch.inf  # what cannot be reached at all is rightly zero
        rows = torch.nonzero(low.any(1)).squeeze(1)
        result[rows] = (log_alpha[rows].unsqueeze(2) + tile[rows]).logsumexp(1)
    return result


def _through_rows(log_beta: Tensor, tile: Tensor, peaks: Tensor, scaled: Tensor) -> Tensor:
    """log Σ_j exp(tile_ij + log_beta_j): (B, K)."""
    top = finite_or_zero(log_beta.amax(1, keepdim=True))
    mass = torch.bmm(scaled, (log_beta - top).exp().unsqueeze(2)).squeeze(2)
    result = mass.log() + peaks + top
    low = mass < SMALLEST_SUM[mass.dtype]
    if bool(low.any()):
        low &= tile.amax(2) > -torch.inf
        rows = torch.nonzero(low.any(1)).squeeze(1)
        result[rows] = (tile[rows] + log_beta[rows].unsqueeze(1)).logsumexp(2)
    return result
