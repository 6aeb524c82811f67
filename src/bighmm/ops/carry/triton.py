"""A carried distribution renormalised over the states that are kept, in one kernel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def renormalise(states: Tensor, log_alpha: Tensor, kept: Tensor) -> Tensor:
    """As `ops.carry.renormalise`, float32."""
    (rows, before), size = states.shape, kept.shape[1]
    result = torch.empty(rows, size, dtype=torch.float32, device=states.device)
    _renormalise[(rows,)](
        states.contiguous(),
        log_alpha.contiguous(),
        kept.contiguous(),
        result,
        before,
        size,
        SIZE=triton.next_power_of_2(size),
        AT_ONCE=16,
        num_warps=4,
    )
    return result


@triton.jit
def _renormalise(
    states, log_alpha, kept, result, before, size, SIZE: tl.constexpr, AT_ONCE: tl.constexpr
):
    row = tl.program_id(0)
    k = tl.arange(0, SIZE)
    now = tl.load(kept + row * size + k, mask=k < size, other=-1)
    now = tl.where(now >= 0, now, -2)  # equal to no state that was carried
    value = tl.full([SIZE], -float("inf"), tl.float32)
    for first in range(0, before, AT_ONCE):
        other = first + tl.arange(0, AT_ONCE)
        was = tl.load(states + row * before + other, mask=other < before, other=-1)
        weight = tl.load(log_alpha + row * before + other, mask=other < before, other=-float("inf"))
        same = now[:, None] == was[None, :]
        found = tl.where(same, weight[None, :], -float("inf"))
        value = tl.maximum(value, tl.max(found, 1))
    top = tl.max(value, 0)
    safe = tl.where(top > -float("inf"), top, 0.0)
    total = safe + tl.log(tl.sum(tl.exp(value - safe), 0))
    count = tl.sum((now >= 0).to(tl.float32), 0)
    even = tl.where(now >= 0, -tl.log(count), -float("inf"))
    spread = tl.where(top > -float("inf"), value - total, even)
    tl.store(result + row * size + k, spread, mask=k < size)
