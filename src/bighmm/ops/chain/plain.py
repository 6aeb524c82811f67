"""The sweeps over a chain of potentials as a loop over positions, in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from bighmm.ops.log_matmul import finite_or_zero, log_product, scale_rows


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
    """log_beta (B, P, K): the log-sum over all continuations from each state at each position.

    It is known up to a factor per position, which makes the largest entry 0 except at the last
    one. `last` (B, K) is its value at each row's last position (zero where the row ends there).
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


def expected_counts(
    tiles: Tensor, lengths: Tensor, sweeps: tuple[Tensor, Tensor, Tensor], weight: Tensor
) -> tuple[Tensor, Tensor]:
    """weight[b] times the expected uses of `first` (B, K) and of the tiles (B, S, K, K).

    sweeps: log_alpha, gained and log_beta. weight (B,) must be zero where no path is possible.
    """
    log_alpha, gained, log_beta = sweeps
    joint = log_alpha + log_beta
    total = finite_or_zero(joint.logsumexp(2))  # (B, P), of the paths through each position
    steps = torch.arange(tiles.shape[1], device=tiles.device)
    outside = steps + 1 >= lengths.unsqueeze(1)
    left = log_alpha[:, :-1] - (gained + total)[:, 1:].unsqueeze(2)
    left = left.masked_fill(outside.unsqueeze(2), -torch.inf)
    counts = (tiles + left.unsqueeze(3)).add_(log_beta[:, 1:].unsqueeze(2)).exp_()
    counts.mul_(weight.view(-1, 1, 1, 1))
    at_first = (joint[:, 0] - total[:, :1]).exp()
    return at_first * weight.unsqueeze(1), counts


def _through_columns(log_alpha: Tensor, tile: Tensor, peaks: Tensor, scaled: Tensor) -> Tensor:
    """log Σ_i exp(log_alpha_i + tile_ij): (B, K)."""
    return log_product(
        log_alpha + peaks,
        lambda weights: torch.bmm(weights.unsqueeze(1), scaled).squeeze(1),
        lambda rows, columns: log_alpha[rows] + tile[rows, :, columns],
        lambda: tile.amax(1) > -torch.inf,  # what cannot be reached at all is rightly zero
    )


def _through_rows(log_beta: Tensor, tile: Tensor, peaks: Tensor, scaled: Tensor) -> Tensor:
    """log Σ_j exp(tile_ij + log_beta_j): (B, K)."""
    return peaks + log_product(
        log_beta,
        lambda weights: torch.bmm(scaled, weights.unsqueeze(2)).squeeze(2),
        lambda rows, columns: log_beta[rows] + tile[rows, columns] - peaks[rows, columns, None],
        lambda: tile.amax(2) > -torch.inf,
    )
