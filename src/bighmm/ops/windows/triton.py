"""Windows in terms of blocks, and expected uses of states, as Triton kernels.

    _describe   the blocks of the tokens, and where texts begin
    _marginals  expected uses of states, and the gradients that are sums of them

Shape letters are those of `hmm.py`; P = T + 1 positions, of which position 0 is the state that was
carried in.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from bighmm.ops.chain.triton import Sweeps
from bighmm.ops.windows import Windows


class Chain(NamedTuple):
    """A batch of windows in terms of blocks; states of block m are m·K … (m+1)·K-1."""

    before: Tensor  # (B, T) int32, the block of the token before
    at: Tensor  # (B, T) int32, the block of the token
    fresh: Tensor  # (B, T) bool, the state comes from the start distribution
    lengths: Tensor  # (B,) int32


def describe(windows: Windows) -> Chain:
    """Windows in terms of blocks, from one kernel."""
    batch, time = windows.ids.shape
    device = windows.ids.device
    before = torch.empty(batch, time, dtype=torch.int32, device=device)
    at = torch.empty_like(before)
    anew = torch.empty(batch, time, dtype=torch.bool, device=device)
    counts = torch.empty(batch, dtype=torch.int32, device=device)
    _describe[(batch,)](
        windows.ids.contiguous(),
        windows.fresh.contiguous(),
        windows.lengths.contiguous(),
        windows.carried_token.contiguous(),
        windows.carried_fresh.contiguous(),
        windows.block_of,
        before,
        at,
        anew,
        counts,
        time,
        TIME=triton.next_power_of_2(time),
        num_warps=1,
    )
    return Chain(before, at, anew, counts)


class Marginals(NamedTuple):
    """Expected uses of everything but the moves, weighted; left and right are for the moves."""

    left: Tensor  # (B, T, K)
    right: Tensor  # (B, T, K)
    moved: Tensor  # (B, T, K) expected moves from the states before t, 0 where a text starts anew
    of_emitted: Tensor  # (B, T, K)
    of_start: Tensor  # (Z,)
    of_norm: Tensor  # (Z,)


def marginals(chain: Chain, sweeps: Sweeps, weight: Tensor, num_states: int) -> Marginals:
    """p(z_t | x) as the gradients that follow from it; weight (B,) is zero where p(x) is."""
    forward, peaks, backward = sweeps
    batch, positions, alive = forward.shape
    left = torch.empty(batch, positions - 1, alive, dtype=torch.float32, device=forward.device)
    right, moved, of_emitted = (torch.empty_like(left) for _ in range(3))
    sums = torch.zeros(2, num_states, dtype=torch.float32, device=forward.device)
    _marginals[(batch, positions)](
        *chain,
        forward,
        peaks,
        backward,
        weight,
        left,
        right,
        moved,
        of_emitted,
        sums[0],
        sums[1],
        positions - 1,
        alive,
        ALIVE=triton.next_power_of_2(alive),
        num_warps=1 if alive <= 128 else 4,
    )
    return Marginals(left, right, moved, of_emitted, sums[0], sums[1])


@triton.jit
def _describe(
    ids, fresh, lengths, carried, carried_fresh, block_of, before, at, anew, counts, time, TIME:
    tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    t = tl.arange(0, TIME)
    here = row * time + t
    token = tl.load(ids + here, mask=t < time, other=0)
    last = tl.load(ids + here - 1, mask=(t > 0) & (t < time), other=0)
    last = tl.where(t > 0, last, tl.load(carried + row))
    tl.store(at + here, tl.load(block_of + token).to(tl.int32), mask=t < time)
    tl.store(before + here, tl.load(block_of + last).to(tl.int32), mask=t < time)
    drawn = tl.load(fresh + here, mask=t < time, other=0)
    drawn = tl.where(t > 0, drawn.to(tl.int32), tl.load(carried_fresh + row).to(tl.int32))
    tl.store(anew + here, drawn != 0, mask=t < time)
    tl.store(counts + row, tl.load(lengths + row).to(tl.int32))


@triton.jit
def _marginals(
    before, at, fresh, lengths, forward, peaks, backward, weight, left, right, moved, of_emitted,
    of_start, of_norm, time, alive, ALIVE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    position = tl.program_id(1)
    length = tl.load(lengths + row)
    k = tl.arange(0, ALIVE)
    here = (row * (time + 1) + position) * alive + k
    ahead = tl.load(forward + here, mask=k < alive, other=-float("inf"))
    behind = tl.load(backward + here, mask=k < alive, other=-float("inf"))
    joint = ahead + behind
    top = tl.max(joint, 0)
    top = tl.where(top > -float("inf"), top, 0.0)
    total = top + tl.log(tl.sum(tl.exp(joint - top), 0))
    total = tl.where(total > -float("inf"), total, 0.0)
    used = tl.exp(joint - total) * tl.load(weight + row)
    used = tl.where(position <= length, used, 0.0)
    if position > 0:  # what is entered at t = position - 1
        place = row * time + position - 1
        tl.store(right + place * alive + k, behind - total, mask=k < alive)
        tl.store(of_emitted + place * alive + k, used, mask=k < alive)
        if (tl.load(fresh + place) != 0) & (position <= length):
            state = tl.load(at + place) * alive + k
            tl.atomic_add(of_start + state, used, mask=k < alive, sem="relaxed")
    if position < time:  # what is left at t = position
        place = row * time + position
        peak = tl.load(peaks + row * (time + 1) + position)
        tl.store(left + place * alive + k, ahead - peak, mask=k < alive)
        goes_on = (tl.load(fresh + place) == 0) & (position < length)
        tl.store(moved + place * alive + k, tl.where(goes_on, used, 0.0), mask=k < alive)
        if goes_on:
            state = tl.load(before + place) * alive + k
            tl.atomic_add(of_norm + state, -used, mask=k < alive, sem="relaxed")
