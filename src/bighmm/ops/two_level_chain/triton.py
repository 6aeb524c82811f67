"""The tiles of two-level transitions, and gradients from expected counts, as Triton kernels.

    _tiles   log p(j, x_t | i) for the states i of the token before and j of the token at t
    _moves   the gradients of all vectors, from the expected moves of each tile

The description of the windows, the sweeps and the marginals between these are those of
`ops.windows` and `ops.chain`. Shape letters are those of `hmm.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from bighmm.ops.chain.triton import Tiles, chunk_of
from bighmm.ops.two_level_chain.plain import Vectors
from bighmm.ops.windows.triton import Chain, Marginals

PART = 64  # of the width, that a program multiplies at once
SQUARE = 128  # up to so many states a program has a whole tile
ROWS, COLUMNS = 64, 256  # of a larger tile that squares do not divide: what it has at once


class Factors(NamedTuple):
    """What the backward pass needs to make a tile again."""

    highest: Tensor  # (B, T, K) of leaving_i · entering_j over the block at t
    within: Tensor  # (B, T, K) log Σ_j exp(leaving_i · entering_j − highest_i)
    chosen: Tensor  # (B, T, K) log p(block at t | i)


def make_tiles(
    chain: Chain, vectors: Vectors, start: Tensor, emitted: Tensor
) -> tuple[Tiles, Factors]:
    """The vectors are bfloat16, emitted is (B, T, K)."""
    batch, time, alive = emitted.shape
    tiles = torch.empty(batch, time, alive, alive, dtype=torch.float32, device=emitted.device)
    peaks, highest, within, chosen = (torch.empty_like(emitted) for _ in range(4))
    rows, columns = _chunk(alive)
    scaled = torch.empty_like(tiles)
    _tiles[(batch * time, triton.cdiv(alive, rows))](
        *chain,
        *vectors,
        start,
        emitted,
        tiles,
        peaks,
        scaled,
        highest,
        within,
        chosen,
        time,
        alive,
        vectors.leaving.shape[1],
        vectors.choice.shape[1],
        WIDTH=_padded(vectors.leaving),
        PART=min(PART, _padded(vectors.leaving)),
        ROWS=rows,
        COLUMNS=columns,
        ONE=alive <= columns,
        num_warps=_warps(columns),
    )
    return Tiles(tiles, peaks, scaled), Factors(highest, within, chosen)


def empty_gradients(vectors: Vectors) -> list[Tensor]:
    """For those of leaving, entering and choice, float32."""
    return [torch.empty(x.shape, dtype=torch.float32, device=x.device) for x in vectors]


def pull_back(
    chain: Chain,
    vectors: Vectors,
    factors: Factors,
    emitted: Tensor,
    uses: Marginals,
    weight: Tensor,
    grads: list[Tensor],
) -> None:
    """Add to the gradients of leaving, entering and choice."""
    batch, time, alive = emitted.shape
    rows, columns = _chunk(alive)
    _moves[(batch * time, triton.cdiv(alive, rows), triton.cdiv(alive, columns))](
        *chain,
        vectors.leaving,
        vectors.entering,
        *factors,
        emitted,
        uses.left,
        uses.right,
        uses.moved,
        weight,
        *grads,
        time,
        alive,
        vectors.leaving.shape[1],
        vectors.choice.shape[1],
        WIDTH=_padded(vectors.leaving),
        PART=min(PART, _padded(vectors.leaving)),
        ROWS=rows,
        COLUMNS=columns,
        ONE=alive <= columns,
        num_warps=_warps(columns),
        num_stages=3 if columns <= SQUARE else 2,  # more do not fit
    )


def _chunk(alive: int) -> tuple[int, int]:
    """Rows and columns of a tile that a program has at once.

    Squares, where they divide the tile. Else all columns of a row, so that its logits are made
    once, and fewer rows, so that less of the chunks lies outside.
    """
    square = chunk_of(alive, SQUARE)
    if alive <= SQUARE or alive % SQUARE == 0:
        return square, square
    return ROWS, COLUMNS


def _warps(columns: int) -> int:
    return 8 if columns >= SQUARE else 4


def _padded(vectors: Tensor) -> int:
    return max(16, triton.next_power_of_2(vectors.shape[1]))


@triton.jit
def _rows(table, row, inside, h, width):
    """Rows (N, P) of a table, the columns h of them; zero outside."""
    return tl.load(
        table + row.to(tl.int64)[:, None] * width + h[None, :],
        mask=inside[:, None] & (h < width)[None, :],
        other=0.0,
    )


@triton.jit
def _logits(
    leaving, entering, source, from_inside, target, to_inside, width, WIDTH: tl.constexpr, PART:
    tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """leaving_i · entering_j (ROWS, COLUMNS)."""
    move = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, WIDTH, PART):
        h = first + tl.arange(0, PART)
        leave = _rows(leaving, source, from_inside, h, width)
        enter = _rows(entering, target, to_inside, h, width)
        move = tl.dot(leave, tl.trans(enter), move)
    return move


@triton.jit
def _tiles(
    before, at, fresh, lengths, leaving, entering, choice, start, emitted, tiles, peaks,
    scaled, highest, within, chosen, time, alive, width, blocks, WIDTH: tl.constexpr, PART:
    tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ONE: tl.constexpr,
):  # fmt: skip
    """Some rows of a tile. With ONE they have all columns at once, whose logits are made once."""
    place = tl.program_id(0)
    if place % time >= tl.load(lengths + place // time):
        return
    i = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    block = tl.load(at + place)
    cells = tiles + place.to(tl.int64) * alive * alive
    of_scaled = scaled + place.to(tl.int64) * alive * alive
    here = place * alive + i
    if tl.load(fresh + place) != 0:
        highest_cell = tl.full([COLUMNS], -float("inf"), tl.float32)
        for c in range(0, alive, COLUMNS):
            j = c + tl.arange(0, COLUMNS)
            row = tl.load(start + block * alive + j, mask=j < alive, other=-float("inf"))
            row += tl.load(emitted + place * alive + j, mask=j < alive, other=0.0)
            highest_cell = tl.maximum(highest_cell, row)
        row_peak = tl.max(highest_cell, 0)
        row_peak = tl.where(row_peak > -float("inf"), row_peak, 0.0)
        tl.store(peaks + here, row_peak, mask=i < alive)
        for c in range(0, alive, COLUMNS):
            j = c + tl.arange(0, COLUMNS)
            inside = (i < alive)[:, None] & (j < alive)[None, :]
            cell = i[:, None] * alive + j[None, :]
            row = tl.load(start + block * alive + j, mask=j < alive, other=-float("inf"))
            row += tl.load(emitted + place * alive + j, mask=j < alive, other=0.0)
            tl.store(cells + cell, tl.broadcast_to(row[None, :], [ROWS, COLUMNS]), mask=inside)
            scaled_row = tl.broadcast_to(tl.exp(row - row_peak)[None, :], [ROWS, COLUMNS])
            tl.store(of_scaled + cell, scaled_row, mask=inside)
    else:
        source = tl.load(before + place) * alive + i
        chosen_at = choice + source.to(tl.int64) * blocks + block
        of_block = tl.load(chosen_at, mask=i < alive, other=0.0)
        tl.store(chosen + here, of_block, mask=i < alive)
        top = tl.full([ROWS], -float("inf"), tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        likeliest = tl.full([ROWS], -float("inf"), tl.float32)  # with what is emitted
        move = tl.zeros([ROWS, COLUMNS], tl.float32)
        for c in range(0, alive, COLUMNS):
            j = c + tl.arange(0, COLUMNS)
            move = _logits(
                leaving, entering, source, i < alive, block * alive + j, j < alive, width, WIDTH,
                PART, ROWS, COLUMNS,
            )  # fmt: skip
            known = tl.where((j < alive)[None, :], move, -float("inf"))
            higher = tl.maximum(top, tl.max(known, 1))
            total = total * tl.exp(top - higher) + tl.sum(tl.exp(known - higher[:, None]), 1)
            top = higher
            log_emission = tl.load(emitted + place * alive + j, mask=j < alive, other=0.0)
            likeliest = tl.maximum(likeliest, tl.max(known + log_emission[None, :], 1))
        log_total = tl.log(total)
        peak = likeliest - top + (of_block - log_total)
        peak = tl.where(peak > -float("inf"), peak, 0.0)
        tl.store(peaks + here, peak, mask=i < alive)
        tl.store(highest + here, top, mask=i < alive)
        tl.store(within + here, log_total, mask=i < alive)
        for c in range(0, alive, COLUMNS):
            j = c + tl.arange(0, COLUMNS)
            inside = (i < alive)[:, None] & (j < alive)[None, :]
            cell = i[:, None] * alive + j[None, :]
            if not ONE:
                move = _logits(
                    leaving, entering, source, i < alive, block * alive + j, j < alive, width,
                    WIDTH, PART, ROWS, COLUMNS,
                )  # fmt: skip
            log_emission = tl.load(emitted + place * alive + j, mask=j < alive, other=0.0)
            value = move - top[:, None] + (of_block - log_total)[:, None] + log_emission[None, :]
            tl.store(cells + cell, value, mask=inside)
            tl.store(of_scaled + cell, tl.exp(value - peak[:, None]), mask=inside)


@triton.jit
def _moves(
    before, at, fresh, lengths, leaving, entering, highest, within, chosen, emitted, left,
    right, moved, weight, of_leaving, of_entering, of_choice, time, alive, width, blocks, WIDTH:
    tl.constexpr, PART: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ONE: tl.constexpr,
):  # fmt: skip
    """One chunk of a tile: its logits again, their gradient, and those of the vectors."""
    place = tl.program_id(0)
    row = place // time
    if (place % time >= tl.load(lengths + row)) | (tl.load(fresh + place) != 0):
        return
    i = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    j = tl.program_id(2) * COLUMNS + tl.arange(0, COLUMNS)
    block = tl.load(at + place)
    source = tl.load(before + place) * alive + i
    target = block * alive + j
    lowest = -float("inf")
    move = _logits(
        leaving, entering, source, i < alive, target, j < alive, width, WIDTH, PART, ROWS, COLUMNS
    )  # fmt: skip
    move -= tl.load(highest + place * alive + i, mask=i < alive, other=0.0)[:, None]
    move -= tl.load(within + place * alive + i, mask=i < alive, other=0.0)[:, None]
    of_row = tl.load(left + place * alive + i, mask=i < alive, other=lowest)
    of_row += tl.load(chosen + place * alive + i, mask=i < alive, other=0.0)
    of_column = tl.load(right + place * alive + j, mask=j < alive, other=lowest)
    of_column += tl.load(emitted + place * alive + j, mask=j < alive, other=0.0)
    counts = tl.exp(move + of_row[:, None] + of_column[None, :]) * tl.load(weight + row)
    if ONE:
        mass = tl.sum(counts, 1)  # so that the gradient of a row sums to zero however it is rounded
    else:
        mass = tl.load(moved + place * alive + i, mask=i < alive, other=0.0)
    grad = counts - tl.where((j < alive)[None, :], tl.exp(move), 0.0) * mass[:, None]
    grad = grad.to(leaving.dtype.element_ty)
    for first in range(0, WIDTH, PART):
        h = first + tl.arange(0, PART)
        inside = (h < width)[None, :]
        part = tl.dot(grad, _rows(entering, target, j < alive, h, width))
        cell = source.to(tl.int64)[:, None] * width + h[None, :]
        tl.atomic_add(of_leaving + cell, part, mask=(i < alive)[:, None] & inside, sem="relaxed")
        part = tl.dot(tl.trans(grad), _rows(leaving, source, i < alive, h, width))
        cell = target.to(tl.int64)[:, None] * width + h[None, :]
        tl.atomic_add(of_entering + cell, part, mask=(j < alive)[:, None] & inside, sem="relaxed")
    if tl.program_id(2) == 0:
        chosen_at = of_choice + source.to(tl.int64) * blocks + block
        tl.atomic_add(chosen_at, mass, mask=i < alive, sem="relaxed")
