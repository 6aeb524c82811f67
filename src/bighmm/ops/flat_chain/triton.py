"""The potentials of windows of words in blocks, and gradients from expected counts, in Triton.

    _describe   the blocks of the tokens, and where texts begin
    _tiles      log p(j, x_t | i) for the states i of the token before and j of the token at t
    _marginals  expected uses of states, and the gradients that are sums of them
    _moves      expected moves times entering vectors: the gradient of the leaving vectors, and
                the other way round

The sums over paths between these are those of `ops.chain`. Shape letters are those of `hmm.py`;
P = T + 1 positions, of which position 0 is the state that was carried in.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from bighmm.ops.chain.triton import CHUNK, Sweeps, Tiles, chunk_of
from bighmm.ops.flat_chain.plain import Windows


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


def make_tiles(
    chain: Chain, leaving: Tensor, entering: Tensor, norm: Tensor, start: Tensor, emitted: Tensor
) -> Tiles:
    """leaving and entering (Z, H) bfloat16, emitted (B, T, K)."""
    batch, time, alive = emitted.shape
    tiles = torch.empty(batch, time, alive, alive, dtype=torch.float32, device=emitted.device)
    highest = torch.empty_like(emitted)
    chunk = chunk_of(alive, CHUNK)
    pieces = triton.cdiv(alive, chunk)
    scaled = torch.empty_like(tiles) if pieces == 1 else tiles
    _tiles[(batch * time, pieces, pieces)](
        *chain,
        leaving,
        entering,
        norm,
        start,
        emitted,
        tiles,
        highest,
        scaled,
        time,
        alive,
        leaving.shape[1],
        WIDTH=_width(leaving),
        PART=min(256, _width(leaving)),
        CHUNK=chunk,
        SCALED=pieces == 1,
        num_warps=8 if chunk >= 128 else 4,
    )
    return Tiles(tiles, highest, scaled)


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


def pull_back(
    chain: Chain,
    operands: tuple[Tensor, Tensor],
    tiles: Tensor,
    factors: tuple[Tensor, Tensor],
    weight: Tensor,
    grads: tuple[Tensor, Tensor],
) -> None:
    """Add to `grads`, float32 (Z, H) for leaving and entering, what the expected moves imply.

    Those at t are weight[b] · exp(left[t, i] + tiles[t, i, j] + right[t, j]), with the factors
    left and right (B, T, K).
    """
    leaving, entering = operands
    batch, time, alive, _ = tiles.shape
    width = leaving.shape[1]
    chunk = chunk_of(alive, 64)
    for to_leaving, grad in ((True, grads[0]), (False, grads[1])):
        _moves[(batch * time, triton.cdiv(alive, chunk))](
            *chain,
            entering if to_leaving else leaving,
            tiles,
            *factors,
            weight,
            grad,
            time,
            alive,
            width,
            WIDTH=_width(leaving),
            CHUNK=chunk,
            TAKEN=chunk,
            TO_LEAVING=to_leaving,
            num_warps=4 if width <= 256 else 8,
            num_stages=2,
        )


def _width(operand: Tensor) -> int:
    return max(16, triton.next_power_of_2(operand.shape[1]))


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
def _tiles(
    before, at, fresh, lengths, leaving, entering, norm, start, emitted, tiles, highest, scaled,
    time, alive, width, WIDTH: tl.constexpr, PART: tl.constexpr, CHUNK: tl.constexpr, SCALED:
    tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0)
    if place % time >= tl.load(lengths + place // time):
        return
    i = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    j = tl.program_id(2) * CHUNK + tl.arange(0, CHUNK)
    target = tl.load(at + place) * alive + j
    log_emission = tl.load(emitted + place * alive + j, mask=j < alive, other=0.0)
    inside = (i < alive)[:, None] & (j < alive)[None, :]
    cell = place.to(tl.int64) * alive * alive + i[:, None] * alive + j[None, :]
    if tl.load(fresh + place) != 0:
        log_start = tl.load(start + target, mask=j < alive, other=0.0)
        row = log_start + log_emission
        tl.store(tiles + cell, tl.broadcast_to(row[None, :], [CHUNK, CHUNK]), mask=inside)
        if SCALED:
            of_all = tl.max(tl.where(j < alive, row, -float("inf")), 0)
            of_all = tl.where(of_all > -float("inf"), of_all, 0.0)
            tl.store(highest + place * alive + i, of_all, mask=i < alive)
            of_row = tl.broadcast_to(tl.exp(row - of_all)[None, :], [CHUNK, CHUNK])
            tl.store(scaled + cell, of_row, mask=inside)
    else:
        source = tl.load(before + place) * alive + i
        move = tl.zeros([CHUNK, CHUNK], tl.float32)
        for first in tl.static_range(0, WIDTH, PART):  # shared memory has no room for more
            h = first + tl.arange(0, PART)
            leave = tl.load(
                leaving + source[:, None] * width + h[None, :],
                mask=(i < alive)[:, None] & (h < width)[None, :],
                other=0.0,
            )
            enter = tl.load(
                entering + target[:, None] * width + h[None, :],
                mask=(j < alive)[:, None] & (h < width)[None, :],
                other=0.0,
            )
            move = tl.dot(leave, tl.trans(enter), move)
        of_source = tl.load(norm + source, mask=i < alive, other=0.0)
        move += log_emission[None, :] - of_source[:, None]
        tl.store(tiles + cell, move, mask=inside)
        if SCALED:
            top = tl.max(tl.where(inside, move, -float("inf")), 1)
            top = tl.where(top > -float("inf"), top, 0.0)
            tl.store(highest + place * alive + i, top, mask=i < alive)
            tl.store(scaled + cell, tl.exp(move - top[:, None]), mask=inside)


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


@triton.jit
def _moves(
    before, at, fresh, lengths, operand, tiles, left, right, weight, grad, time, alive, width,
    WIDTH: tl.constexpr, CHUNK: tl.constexpr, TAKEN: tl.constexpr, TO_LEAVING: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0)
    row = place // time
    if (place % time >= tl.load(lengths + row)) | (tl.load(fresh + place) != 0):
        return
    if TO_LEAVING:
        my_block = tl.load(before + place)
        their_block = tl.load(at + place)
        my_vector, their_vector = left, right
    else:
        my_block = tl.load(at + place)
        their_block = tl.load(before + place)
        my_vector, their_vector = right, left
    mine = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)
    h = tl.arange(0, WIDTH)
    of_mine = tl.load(my_vector + place * alive + mine, mask=mine < alive, other=-float("inf"))
    share = tl.load(weight + row)
    total = tl.zeros([CHUNK, WIDTH], tl.float32)
    for c in range(0, alive, TAKEN):
        theirs = c + tl.arange(0, TAKEN)
        of_theirs = tl.load(
            their_vector + place * alive + theirs, mask=theirs < alive, other=-float("inf")
        )
        if TO_LEAVING:
            cell = mine[:, None] * alive + theirs[None, :]
        else:
            cell = theirs[None, :] * alive + mine[:, None]
        tile = tl.load(
            tiles + place.to(tl.int64) * alive * alive + cell,
            mask=(mine < alive)[:, None] & (theirs < alive)[None, :],
            other=-float("inf"),
        )
        counts = tl.exp(tile + of_mine[:, None] + of_theirs[None, :]) * share
        vectors = tl.load(
            operand + (their_block * alive + theirs)[:, None] * width + h[None, :],
            mask=(theirs < alive)[:, None] & (h < width)[None, :],
            other=0.0,
        )
        total = tl.dot(counts.to(vectors.dtype), vectors, total)
    tl.atomic_add(
        grad + (my_block * alive + mine)[:, None] * width + h[None, :],
        total,
        mask=(mine < alive)[:, None] & (h < width)[None, :],
        sem="relaxed",
    )
