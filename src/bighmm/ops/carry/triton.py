"""A carried distribution over the states that are kept now, for a blocked model, in one kernel."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def onto(blocks: Tensor, states: Tensor, log_alpha: Tensor, kept: Tensor, alive: int) -> Tensor:
    """log p (B, K) over the states kept[block · K …] of each row's block, renormalised.

    blocks (B,) of the last tokens; states and log_alpha (B, K') as they were carried; kept (Z',)
    ids of the states kept now, K of every block.
    """
    rows, before = states.shape
    result = torch.empty(rows, alive, dtype=torch.float32, device=states.device)
    _onto[(rows,)](
        blocks,
        states,
        log_alpha,
        kept,
        result,
        before,
        alive,
        SIZE=triton.next_power_of_2(alive),
        AT_ONCE=16,
        num_warps=4,
    )
    return result


@triton.jit
def _onto(
    blocks,
    states,
    log_alpha,
    kept,
    result,
    before,
    alive,
    SIZE: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    row = tl.program_id(0)
    k = tl.arange(0, SIZE)
    now = tl.load(kept + tl.load(blocks + row) * alive + k, mask=k < alive, other=-2)
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
    summed = tl.sum(tl.exp(value - safe), 0)
    total = safe + tl.log(tl.where(summed > 0, summed, 1.0))
    even = -tl.log(alive * 1.0)
    tl.store(
        result + row * alive + k, tl.where(top > -float("inf"), value - total, even), mask=k < alive
    )
