"""Random choices in proportion to weights that are given as logarithms.

A random number is looked up among the sums of the weights, so one number is drawn per choice;
`torch.multinomial` draws one per weight and took most of the time. What has weight zero adds
nothing to the sums and is never found.
"""

from __future__ import annotations

import torch
from torch import Tensor


def draw(log_weights: Tensor, generator: torch.Generator | None) -> Tensor:
    """One index for each row of log_weights (N, C), as (N,)."""
    return _look_up(log_weights, 1, generator).squeeze(1)


def draw_many(log_weights: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
    """n independent indices (n,) with the same log_weights (C,)."""
    return _look_up(log_weights.unsqueeze(0), n, generator).squeeze(0)


def _look_up(log_weights: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
    """n indices for each row (N, n)."""
    sums = log_weights.softmax(1).cumsum(1, dtype=torch.float64)
    total = sums[:, -1:]
    shape = (len(sums), n)
    chosen = torch.rand(shape, generator=generator, dtype=sums.dtype, device=sums.device)
    below = torch.nextafter(total, torch.zeros_like(total))  # rounding must not lead beyond the sum
    return torch.searchsorted(sums, torch.minimum(chosen * total, below), right=True)
