"""The states that survive dropout, as `state_dropout` draws them, in one kernel.

In each group those with the lowest noise are kept. A state's rank is counted, not sorted for.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bighmm.base.randomness import FIRST, GOLDEN, SECOND

_GOLDEN, _FIRST, _SECOND = tl.constexpr(GOLDEN), tl.constexpr(FIRST), tl.constexpr(SECOND)


def draw(groups: int, size: int, keep: int, key: Tensor, chosen: Tensor | None = None) -> Tensor:
    """Ids (groups · keep,) of the states kept, sorted; key () int64, chosen (S,) groups or None."""
    groups = groups if chosen is None else len(chosen)
    kept = torch.empty(groups * keep, dtype=torch.long, device=key.device)
    padded = max(16, triton.next_power_of_2(size))
    _draw[(groups,)](
        key,
        key if chosen is None else chosen,
        kept,
        size,
        keep,
        SOME=chosen is not None,
        SIZE=padded,
        AT_ONCE=16,
        num_warps=4 if padded <= 256 else 8,
    )
    return kept


@triton.jit
def scrambled(x):
    """As `base.randomness.scrambled`, for int64 numbers."""
    x = x * _GOLDEN
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * _FIRST
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * _SECOND
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


@triton.jit
def _draw(
    key, chosen, kept, size, keep, SOME: tl.constexpr, SIZE: tl.constexpr, AT_ONCE: tl.constexpr
):
    place = tl.program_id(0)
    group = place.to(tl.int64)
    if SOME:
        group = tl.load(chosen + place)
    base = tl.load(key) + group * size
    state = tl.arange(0, SIZE)
    noise = scrambled(base + state)
    rank = tl.zeros([SIZE], tl.int32)
    for first in range(0, size, AT_ONCE):
        other = first + tl.arange(0, AT_ONCE)
        lower = (scrambled(base + other)[None, :] < noise[:, None]) & (other < size)[None, :]
        rank += tl.sum(lower.to(tl.int32), 1)
    stays = (rank < keep) & (state < size)
    within = tl.cumsum(stays.to(tl.int32), 0) - 1
    tl.store(kept + place * keep + within, group * size + state, mask=stays)
