"""The potentials of windows of words in blocks, and gradients from expected counts, in Triton.

    _tiles      log p(j, x_t | i) for the states i of the token before and j of the token at t
    _moves      expected moves times entering vectors: the gradient of the leaving vectors, and
                the other way round

The sums over paths between these are those of `ops.chain`, the windows in terms of blocks and the
expected uses of states those of `ops.windows`. Shape letters are those of `hmm.py`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bighmm.ops.chain.triton import CHUNK, Tiles, chunk_of
from bighmm.ops.log_matmul import scale_rows
from bighmm.ops.windows.triton import Chain


def make_tiles(
    chain: Chain, leaving: Tensor, entering: Tensor, norm: Tensor, start: Tensor, emitted: Tensor
) -> Tiles:
    """leaving and entering (Z, H) bfloat16, emitted (B, T, K)."""
    batch, time, alive = emitted.shape
    tiles = torch.empty(batch, time, alive, alive, dtype=torch.float32, device=emitted.device)
    highest = torch.empty_like(emitted)
    chunk = chunk_of(alive, CHUNK)
    pieces = triton.cdiv(alive, chunk)
    scaled = torch.empty_like(tiles) if pieces == 1 else tiles  # else no program has whole rows
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
    if pieces > 1:
        highest, scaled = scale_rows(tiles)
    return Tiles(tiles, highest, scaled)


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
