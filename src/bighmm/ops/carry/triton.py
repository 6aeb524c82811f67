"""The operations on a carried state, in one kernel each."""

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


def after_window(
    ids: Tensor,
    lengths: Tensor,
    log_alpha: Tensor,
    before: tuple[Tensor, Tensor, Tensor],
    end: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """As `ops.carry.after_window`, float32; end is -1 where no token ends a text."""
    (rows, time), size = ids.shape, log_alpha.shape[1]
    after = tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in before)
    _after_window[(rows,)](
        ids.contiguous(),
        lengths.contiguous(),
        log_alpha.contiguous(),
        *(x.contiguous() for x in before),
        *after,
        end,
        time,
        size,
        SIZE=triton.next_power_of_2(size),
        num_warps=1 if size <= 128 else 4,
    )
    tokens, log_alpha, fresh = after
    return tokens, log_alpha, fresh


def states_of_blocks(tokens: Tensor, block_of: Tensor, kept: Tensor, size: int) -> Tensor:
    """As `ops.carry.states_of_blocks`."""
    result = torch.empty(len(tokens), size, dtype=kept.dtype, device=kept.device)
    _states_of_blocks[(len(tokens),)](
        tokens.contiguous(),
        block_of,
        kept,
        result,
        size,
        SIZE=triton.next_power_of_2(size),
        num_warps=1,
    )
    return result


@triton.jit
def _states_of_blocks(tokens, block_of, kept, result, size, SIZE: tl.constexpr):
    row = tl.program_id(0)
    block = tl.load(block_of + tl.load(tokens + row))
    k = tl.arange(0, SIZE)
    state = tl.load(kept + block * size + k, mask=k < size, other=0)
    tl.store(result + row * size + k, state, mask=k < size)


@triton.jit(do_not_specialize=["end"])
def _after_window(
    ids, lengths, log_alpha, tokens, was, fresh, next_tokens, normalised, next_fresh, end, time,
    size, SIZE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    length = tl.load(lengths + row)
    k = tl.arange(0, SIZE)
    here = row * size + k
    if length > 0:
        token = tl.load(ids + row * time + length - 1)
        tl.store(next_tokens + row, token)
        tl.store(next_fresh + row, token == end)
        value = tl.load(log_alpha + here, mask=k < size, other=-float("inf"))
        top = tl.max(value, 0)
        top = tl.where(top > -float("inf"), top, 0.0)
        total = top + tl.log(tl.sum(tl.exp(value - top), 0))
        total = tl.where(total > -float("inf"), total, 0.0)
        tl.store(normalised + here, value - total, mask=k < size)
    else:
        tl.store(next_tokens + row, tl.load(tokens + row))
        tl.store(next_fresh + row, tl.load(fresh + row))
        kept = tl.load(was + here, mask=k < size, other=0.0)
        tl.store(normalised + here, kept, mask=k < size)


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
