"""Random choices in proportion to weights that are given as logarithms.

A random number is looked up among the sums of the weights, so one number is drawn per choice;
`torch.multinomial` draws one per weight and took most of the time. What has weight zero adds
nothing to the sums and is never found.
"""

from __future__ import annotations

import torch
from torch import Tensor

GROUP = 128  # columns whose weights are summed together


def draw(log_weights: Tensor, generator: torch.Generator | None) -> Tensor:
    """One index for each row of log_weights (N, C), as (N,)."""
    return _look_up(log_weights, 1, generator).squeeze(1)


def draw_many(log_weights: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
    """n independent indices (n,) with the same log_weights (C,)."""
    return _look_up(log_weights.unsqueeze(0), n, generator).squeeze(0)


def draw_at(log_probs: Tensor, chosen: Tensor) -> Tensor:
    """The index (N,) at which the sum of the probabilities of a row (N, C) exceeds `chosen` (N,).

    So where `chosen` is drawn evenly from 0 to 1, the index is drawn from the row. Probabilities
    are summed in groups first, and then one by one in the group that has it: sums over all columns
    in float64 would take most of the time. The host is asked for no number.
    """
    padding = -log_probs.shape[1] % GROUP
    padded = torch.nn.functional.pad(log_probs, (0, padding), value=-torch.inf)
    groups = padded.exp().unflatten(1, (-1, GROUP))
    sums = groups.sum(2, dtype=torch.float64).cumsum(1)
    place = torch.minimum(chosen.unsqueeze(1) * sums[:, -1:], _just_below(sums[:, -1:]))
    group = torch.searchsorted(sums, place, right=True)
    before = torch.nn.functional.pad(sums, (1, 0)).gather(1, group)
    within = groups.gather(1, group.unsqueeze(2).expand(-1, -1, GROUP)).squeeze(1)
    sums = within.cumsum(1, dtype=torch.float64)
    place = torch.minimum((place - before).clamp(min=0), _just_below(sums[:, -1:]))
    return (group * GROUP + torch.searchsorted(sums, place, right=True)).squeeze(1)


def _look_up(log_weights: Tensor, n: int, generator: torch.Generator | None) -> Tensor:
    """n indices for each row (N, n)."""
    sums = log_weights.softmax(1).cumsum(1, dtype=torch.float64)
    total = sums[:, -1:]
    shape = (len(sums), n)
    chosen = torch.rand(shape, generator=generator, dtype=sums.dtype, device=sums.device)
    return torch.searchsorted(sums, torch.minimum(chosen * total, _just_below(total)), right=True)


def _just_below(total: Tensor) -> Tensor:
    """The next smaller numbers, as rounding must not lead beyond a sum."""
    return torch.nextafter(total, torch.zeros_like(total))
