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


def draw(groups: int, size: int, keep: int, key: Tensor) -> Tensor:
    """Ids (groups · keep,) of the states kept, sorted; key () int64."""
    kept = torch.empty(groups * keep, dtype=torch.long, device=key.device)
    padded = max(16, triton.next_power_of_2(size))
    _draw[(groups,)](
        key, kept, size, keep, SIZE=padded, AT_ONCE=16, num_warps=4 if padded <= 256 else 8
    )
    return kept


@triton.jit
def _scrambled(x):
    x = x * _GOLDEN
    x = (x ^ ((x >> 30) & 0x3FFFFFFFF)) * _FIRST
    x = (x ^ ((x >> 27) & 0x1FFFFFFFFF)) * _SECOND
    return x ^ ((x >> 31) & 0x1FFFFFFFF)


@triton.jit
def _draw(key, kept, size, keep, SIZE: tl.constexpr, AT_ONCE: tl.constexpr):
    group = tl.program_id(0)
    base = tl.load(key) + group * size
    state = tl.arange(0, SIZE)
    noise = _scrambled(base + state)
    rank = tl.zeros([SIZE], tl.int32)
    for first in range(0, size, AT_ONCE):
        other = first + tl.arange(0, AT_ONCE)
        lower = (_scrambled(base + other)[None, :] < noise[:, None]) & (other < size)[None, :]
        rank += tl.sum(lower.to(tl.int32), 1)
    chosen = (rank < keep) & (state < size)
    place = tl.cumsum(chosen.to(tl.int32), 0) - 1
    tl.store(kept + group * keep + place, (group * size + state).to(tl.int64), mask=chosen)
