"""The states that survive dropout, as a function of a key: the same on every device."""

from __future__ import annotations

import torch
from torch import Tensor

from bighmm.base import randomness
from bighmm.ops.impl import Impl, use_triton

__all__ = ["draw_kept"]


def draw_kept(
    groups: int,
    size: int,
    rate: float,
    key: Tensor,
    impl: Impl = "auto",
    chosen: Tensor | None = None,
) -> Tensor:
    """Ids, sorted, of the states that dropout at `rate` keeps, on the key's device.

    States are `groups` groups of `size`; in each the same number is kept, at least one: those with
    the lowest noise. key: () int64, see `base.randomness`. chosen (S,): the groups to draw for, in
    this order; what is kept of a group does not depend on the others. Raises ValueError for a rate
    outside [0, 1).
    """
    if not 0 <= rate < 1:
        raise ValueError(f"the rate of state dropout must be at least 0 and below 1, not {rate}")
    keep = max(1, round((1 - rate) * size))
    if size <= 2048 and use_triton(key, impl):
        from bighmm.ops.state_dropout import triton

        return triton.draw(groups, size, keep, key, chosen)
    order = randomness.noise(key, groups * size).view(groups, size)
    within = order.argsort(dim=1)[:, :keep].sort(dim=1).values
    first = torch.arange(groups, device=within.device) * size
    kept = first.unsqueeze(1) + within
    return (kept if chosen is None else kept.index_select(0, chosen)).view(-1)
