"""Small things that every scaled-probability product needs."""

from __future__ import annotations

import torch
from torch import Tensor

# A sum of terms scaled to at most 1 that comes out below this may have lost terms which were
# flushed to zero; above it, what was lost is under one part in a million.
SMALLEST_SUM = {torch.float32: 1e-28, torch.float64: 1e-280}


def finite_or_zero(values: Tensor) -> Tensor:
    """-inf replaced by 0, for use as an offset."""
    return values.masked_fill(values == -torch.inf, 0.0)


def recentred(scores: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """Scores (B, …) with the best of each row at 0, and total (B,) with what was taken from them.

    Sums over a long text have many digits, and differences between states only the last few; so
    the sums are kept apart, in float64.
    """
    top = finite_or_zero(scores.flatten(1).amax(1))
    return scores - top.view(-1, *[1] * (scores.dim() - 1)), total + top.double()


def scale_rows(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """Row maxima (..., K), and tiles (..., K, K) as probabilities with every row's maximum at 1."""
    peaks = finite_or_zero(tiles.amax(-1))
    return peaks, (tiles - peaks.unsqueeze(-1)).exp_()
