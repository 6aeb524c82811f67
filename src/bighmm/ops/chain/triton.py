"""Sums over all paths of a chain of K × K potentials, and their gradients, as Triton kernels.

    _short_sweeps, _long_sweeps   forward and backward vectors; a program per row and direction
    _counts                       expected uses of every potential
    _ends                         what the forward vectors come to at the end of each sequence

Sums of exponentials are relative to their largest term, or are repeated so where they come near
the smallest number, so that nothing is lost whatever the potentials are; they may be -inf. Vectors
are re-centred at every position: forward[t] is relative to the sum of peaks[s] over s < t. Shape
letters are those of `hmm.py`; P = T + 1 positions, of which position 0 is before the first tile.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

CHUNK = 128  # up to so many states one program holds a whole tile
HELD = 8192  # numbers of a larger one that it holds at once


class Tiles(NamedTuple):
    logs: Tensor  # (B, T, K, K)
    highest: Tensor  # (B, T, K) of each row, or 0 where that is -inf
    scaled: Tensor  # (B, T, K, K) exp(logs - highest)


class Sweeps(NamedTuple):
    forward: Tensor  # (B, P, K)
    peaks: Tensor  # (B, P)
    backward: Tensor | None  # (B, P, K), up to a factor per position


def sweep(lengths: Tensor, first: Tensor, tiles: Tiles, with_backward: bool) -> Sweeps:
    """first (B, K) is the vector before the first tile; lengths (B,) int32 counts tiles."""
    batch, time, alive, _ = tiles.logs.shape
    forward = torch.empty(batch, time + 1, alive, dtype=torch.float32, device=first.device)
    peaks = torch.empty(batch, time + 1, dtype=torch.float32, device=first.device)
    backward = torch.empty_like(forward) if with_backward else forward
    chunk = chunk_of(alive, CHUNK)
    grid = (batch, 2 if with_backward else 1)
    if alive <= chunk:
        _short_sweeps[grid](
            lengths,
            first,
            *tiles,
            forward,
            peaks,
            backward,
            time,
            alive,
            CHUNK=chunk,
            EXACT=alive == chunk,
            num_warps=_sweep_warps(chunk),
        )
    else:
        padded = triton.next_power_of_2(alive)
        _long_sweeps[grid](
            lengths,
            first,
            *tiles,
            forward,
            peaks,
            backward,
            torch.empty_like(first),
            time,
            alive,
            ALIVE=padded,
            ROWS=max(1, HELD // padded),
            num_warps=8,
        )
    return Sweeps(forward, peaks, backward if with_backward else None)


def counts(lengths: Tensor, logs: Tensor, sweeps: Sweeps, weight: Tensor) -> tuple[Tensor, Tensor]:
    """weight[b] times the expected uses of `first` (B, K) and of the tiles (B, T, K, K).

    weight (B,) must be zero where no path is possible.
    """
    forward, peaks, backward = sweeps
    batch, positions, alive = forward.shape
    of_first = torch.empty(batch, alive, dtype=torch.float32, device=forward.device)
    of_tiles = torch.empty_like(logs)
    padded = max(16, triton.next_power_of_2(alive))
    _counts[(batch, positions)](
        lengths,
        logs,
        forward,
        peaks,
        backward,
        weight,
        of_first,
        of_tiles,
        positions - 1,
        alive,
        ALIVE=padded,
        ROWS=max(1, min(padded, 4096 // padded)),
        num_warps=4,
    )
    return of_first, of_tiles


def ends(lengths: Tensor, sweeps: Sweeps) -> tuple[Tensor, Tensor]:
    """log Z (B,) and the forward vector (B, K) after each row's `lengths` tiles (B,)."""
    batch, positions, alive = sweeps.forward.shape
    log_sum = torch.empty(batch, dtype=torch.float32, device=lengths.device)
    vector = torch.empty(batch, alive, dtype=torch.float32, device=lengths.device)
    _ends[(batch,)](
        lengths,
        sweeps.forward,
        sweeps.peaks,
        log_sum,
        vector,
        positions,
        alive,
        ALIVE=triton.next_power_of_2(alive),
        POSITIONS=triton.next_power_of_2(positions),
        num_warps=1 if alive <= 128 else 4,
    )
    return log_sum, vector


def chunk_of(alive: int, most: int) -> int:
    """How many of `alive` states a program takes at once: a power of two, at least 16."""
    return min(most, max(16, triton.next_power_of_2(alive)))


def _sweep_warps(chunk: int) -> int:
    return 8 if chunk >= 128 else 4


@triton.jit
def _short_sweeps(
    lengths, first, tiles, highest, scaled, forward, peaks, backward, time, alive, CHUNK:
    tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """`_sweeps` where one chunk holds all states: vectors stay in registers, tiles come ahead.

    A step is a product in probability space, each row of the tile relative to its highest entry.
    Where a sum comes near the smallest number, the step is done again in log space.
    """
    row = tl.program_id(0)
    length = tl.load(lengths + row)
    tiles += row.to(tl.int64) * time * alive * alive
    scaled += row.to(tl.int64) * time * alive * alive
    highest += row * time * alive
    size = alive * alive
    # Vectors are (1, CHUNK): every warp has all of a vector, so that its largest entry is found
    # without waiting for other warps.
    s = tl.arange(0, CHUNK)[None, :]
    known = s < alive
    i = tl.arange(0, CHUNK)[:, None]
    cell = i * alive + s
    inside = (i < alive) & known
    if tl.program_id(1) == 0:
        forward += row * (time + 1) * alive
        peaks += row * (time + 1)
        vector = tl.load(first + row * alive + s, mask=known, other=-float("inf"))
        ahead = tl.load(scaled + cell, mask=inside & (length > 0), other=0.0)
        tops = tl.load(highest + s, mask=known & (length > 0), other=0.0)
        for t in range(0, length):
            tile = ahead
            of_rows = tops
            more = t + 1 < length
            if EXACT:
                ahead = tl.load(scaled + tl.where(more, t + 1, t) * size + cell)
            else:
                ahead = tl.load(scaled + (t + 1) * size + cell, mask=inside & more, other=0.0)
            tops = tl.load(highest + (t + 1) * alive + s, mask=known & more, other=0.0)
            tl.store(forward + t * alive + s, vector, mask=known)
            weights = vector + of_rows
            top = tl.max(weights, 1, keep_dims=True)
            top = tl.where(top > -float("inf"), top, 0.0)
            tl.store(peaks + t + tl.arange(0, 1)[None, :], top)
            mass = tl.sum(
                tile * tl.reshape(tl.exp(weights - top), [CHUNK])[:, None], 0, keep_dims=True
            )
            least = tl.min(tl.min(tl.where(known, mass, 1.0), 1), 0)
            moved = tl.log(mass)
            if least < 1e-30:
                logs = tl.load(tiles + t * size + cell, mask=inside, other=-float("inf"))
                terms = logs + tl.reshape(vector - top, [CHUNK])[:, None]
                best = tl.max(terms, 0, keep_dims=True)
                best = tl.where(best > -float("inf"), best, 0.0)
                moved = best + tl.log(tl.sum(tl.exp(terms - best), 0, keep_dims=True))
            vector = moved
        for t in range(length, time + 1):  # past the end the last vector is repeated
            tl.store(forward + t * alive + s, vector, mask=known)
            tl.store(peaks + t, 0.0)
    else:
        backward += row * (time + 1) * alive
        vector = tl.zeros([1, CHUNK], tl.float32)
        for t in range(length, time + 1):
            tl.store(backward + t * alive + s, vector, mask=known)
        last = length - 1
        ahead = tl.load(scaled + last * size + cell, mask=inside & (last >= 0), other=0.0)
        tops = tl.load(highest + last * alive + s, mask=known & (last >= 0), other=0.0)
        for u in range(0, length):
            t = length - 1 - u
            tile = ahead
            of_rows = tops
            more = t > 0
            if EXACT:
                ahead = tl.load(scaled + tl.where(more, t - 1, t) * size + cell)
            else:
                ahead = tl.load(scaled + (t - 1) * size + cell, mask=inside & more, other=0.0)
            tops = tl.load(highest + (t - 1) * alive + s, mask=known & more, other=0.0)
            vector = tl.where(known, vector, -float("inf"))
            peak = tl.max(vector, 1, keep_dims=True)
            peak = tl.where(peak > -float("inf"), peak, 0.0)
            mass = tl.sum(tile * tl.exp(vector - peak), 1)[None, :]
            least = tl.min(tl.min(tl.where(known, mass, 1.0), 1), 0)
            moved = of_rows + tl.log(mass)
            if least < 1e-30:
                logs = tl.load(tiles + t * size + cell, mask=inside, other=-float("inf"))
                terms = logs + (vector - peak)
                best = tl.max(terms, 1)
                best = tl.where(best > -float("inf"), best, 0.0)
                total = tl.sum(tl.exp(terms - best[:, None]), 1)
                moved = (best + tl.log(total))[None, :]
            vector = moved
            tl.store(backward + t * alive + s, vector, mask=known)


@triton.jit
def _long_sweeps(
    lengths, first, tiles, highest, scaled, forward, peaks, backward, shares, time, alive, ALIVE:
    tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """`_short_sweeps` for larger tiles, of which a program holds some rows at a time.

    What belongs to the rows of the tile is in memory for all threads: weights of the forward sweep
    in `shares` (B, K), sums of the backward sweep in `backward`. What belongs to its columns stays
    in registers.
    """
    row = tl.program_id(0)
    length = tl.load(lengths + row)
    tiles += row.to(tl.int64) * time * alive * alive
    scaled += row.to(tl.int64) * time * alive * alive
    highest += row * time * alive
    size = alive * alive
    s = tl.arange(0, ALIVE)[None, :]
    known = s < alive
    if tl.program_id(1) == 0:
        forward += row * (time + 1) * alive
        peaks += row * (time + 1)
        shares += row * alive
        vector = tl.load(first + row * alive + s, mask=known, other=-float("inf"))
        for t in range(0, length):
            tl.store(forward + t * alive + s, vector, mask=known)
            weights = vector + tl.load(highest + t * alive + s, mask=known, other=0.0)
            top = tl.max(weights, 1, keep_dims=True)
            top = tl.where(top > -float("inf"), top, 0.0)
            tl.store(peaks + t + tl.arange(0, 1)[None, :], top)
            tl.store(shares + s, tl.exp(weights - top), mask=known)
            tl.debug_barrier()  # the shares are read by other threads than those that write them
            sums = tl.zeros([ROWS, ALIVE], tl.float32)
            for c in tl.range(0, alive, ROWS, num_stages=3):
                i = c + tl.arange(0, ROWS)[:, None]
                tile = tl.load(
                    scaled + t * size + i * alive + s, mask=(i < alive) & known, other=0.0
                )
                sums += tile * tl.load(shares + i, mask=i < alive, other=0.0)
            mass = tl.sum(sums, 0, keep_dims=True)
            tl.debug_barrier()  # all have read the shares
            least = tl.min(tl.min(tl.where(known, mass, 1.0), 1), 0)
            moved = tl.log(mass)
            if least < 1e-30:
                best = tl.full([1, ALIVE], -float("inf"), tl.float32)
                total = tl.zeros([1, ALIVE], tl.float32)
                for c in range(0, alive, ROWS):
                    i = c + tl.arange(0, ROWS)[:, None]
                    before = tl.load(forward + t * alive + i, mask=i < alive, other=-float("inf"))
                    terms = tl.load(
                        tiles + t * size + i * alive + s, mask=(i < alive) & known,
                        other=-float("inf"),
                    ) + (before - top)  # fmt: skip
                    higher = tl.maximum(best, tl.max(terms, 0, keep_dims=True))
                    base = tl.where(higher > -float("inf"), higher, 0.0)
                    part = tl.sum(tl.exp(terms - base), 0, keep_dims=True)
                    total = total * tl.exp(best - base) + part
                    best = higher
                moved = tl.where(best > -float("inf"), best, 0.0) + tl.log(total)
            vector = moved
        for t in range(length, time + 1):  # past the end the last vector is repeated
            tl.store(forward + t * alive + s, vector, mask=known)
            tl.store(peaks + t, 0.0)
    else:
        backward += row * (time + 1) * alive
        for t in range(length, time + 1):
            tl.store(backward + t * alive + s, tl.zeros([1, ALIVE], tl.float32), mask=known)
        for u in range(0, length):
            t = length - 1 - u
            tl.debug_barrier()  # the vector of the last step was written by other threads
            vector = tl.load(backward + (t + 1) * alive + s, mask=known, other=-float("inf"))
            peak = tl.max(vector, 1, keep_dims=True)
            peak = tl.where(peak > -float("inf"), peak, 0.0)
            shared = tl.exp(vector - peak)
            for c in tl.range(0, alive, ROWS, num_stages=3):
                i = c + tl.arange(0, ROWS)
                inside = (i < alive)[:, None] & known
                cell = t * size + i[:, None] * alive + s
                tile = tl.load(scaled + cell, mask=inside, other=0.0)
                mass = tl.sum(tile * shared, 1)
                of_rows = tl.load(highest + t * alive + i, mask=i < alive, other=0.0)
                moved = of_rows + tl.log(mass)
                if tl.min(tl.where(i < alive, mass, 1.0), 0) < 1e-30:
                    logs = tl.load(tiles + cell, mask=inside, other=-float("inf"))
                    terms = logs + (vector - peak)
                    best = tl.max(terms, 1)
                    best = tl.where(best > -float("inf"), best, 0.0)
                    moved = best + tl.log(tl.sum(tl.exp(terms - best[:, None]), 1))
                tl.store(backward + t * alive + i, moved, mask=i < alive)


@triton.jit
def _counts(
    lengths, tiles, forward, peaks, backward, weight, of_first, of_tiles, time, alive, ALIVE:
    tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """What is used at one position: its states share `weight`, and so do the moves into it."""
    row = tl.program_id(0)
    position = tl.program_id(1)
    length = tl.load(lengths + row)
    share = tl.load(weight + row)
    k = tl.arange(0, ALIVE)
    here = (row * (time + 1) + position) * alive + k
    ahead = tl.load(forward + here, mask=k < alive, other=-float("inf"))
    behind = tl.load(backward + here, mask=k < alive, other=-float("inf"))
    joint = ahead + behind
    top = tl.max(joint, 0)
    top = tl.where(top > -float("inf"), top, 0.0)
    total = top + tl.log(tl.sum(tl.exp(joint - top), 0))
    total = tl.where(total > -float("inf"), total, 0.0)
    if position == 0:
        tl.store(of_first + row * alive + k, tl.exp(joint - total) * share, mask=k < alive)
    else:
        before = row * (time + 1) + position - 1
        place = (row * time + position - 1).to(tl.int64)
        peak = tl.load(peaks + before)
        for first in range(0, alive, ROWS):
            i = first + tl.arange(0, ROWS)
            inside = (i < alive)[:, None] & (k < alive)[None, :]
            cell = place * alive * alive + i[:, None] * alive + k[None, :]
            used = position <= length
            left = tl.load(
                forward + before * alive + i, mask=(i < alive) & used, other=-float("inf")
            )
            tile = tl.load(tiles + cell, mask=inside & used, other=-float("inf"))
            moves = tl.exp(tile + (left - peak)[:, None] + (behind - total)[None, :]) * share
            tl.store(of_tiles + cell, moves, mask=inside)


@triton.jit
def _ends(
    lengths, forward, peaks, log_sum, vector, positions, alive, ALIVE: tl.constexpr, POSITIONS:
    tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    length = tl.load(lengths + row)
    k = tl.arange(0, ALIVE)
    at = (row * positions + length) * alive + k
    value = tl.load(forward + at, mask=k < alive, other=-float("inf"))
    tl.store(vector + row * alive + k, value, mask=k < alive)
    top = tl.max(value, 0)
    top = tl.where(top > -float("inf"), top, 0.0)
    t = tl.arange(0, POSITIONS)
    gained = tl.sum(tl.load(peaks + row * positions + t, mask=t < length, other=0.0), 0)
    tl.store(log_sum + row, top + tl.log(tl.sum(tl.exp(value - top), 0)) + gained)
