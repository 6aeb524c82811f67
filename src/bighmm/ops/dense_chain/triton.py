"""The steps between the products of `dense_chain`, as Triton kernels.

With P the transition matrix rounded to bfloat16 and r its row sums, a step forward is

    mass = w · P          w = rounded(α / r) of the step before, total = Σ w r
    α_j ∝ (mass_j / total) exp(e_j)

so that whatever the rounding does, mass / total sums to one and the next word's probabilities do
too. e is the log emission, logits[j] + shift − norm[j]. A step back is

    v_j ∝ β_j exp(e_j)        β of the step before = (v · Pᵀ) / r

Each v has a scale of its own, whose logarithm is kept, so that the two sweeps need nothing of each
other; `combine` puts them together.

Nothing in P is below `LEAST`: where a model all but forbids a move that the text asks for, sweeps
would lose all mass, and a captured step cannot do them again in log space. Mass / total sums to one
as before, since r has these entries too.

A program has one sequence and all states.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = tl.constexpr(1.4426950408889634)
LEAST = 1e-34  # of which some 10,000 parts are still above the smallest number


def make_matrix(leaving: Tensor, entering: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
    """P (Z, Z) in the operands' type, and its row sums (Z,) float32."""
    states, width = leaving.shape
    matrix = torch.empty(states, states, dtype=leaving.dtype, device=leaving.device)
    sums = torch.zeros(states, dtype=torch.float32, device=leaving.device)
    at_once = max(16, triton.next_power_of_2(width))
    tile = max(16, min(128, 32768 // at_once))  # what two tiles of vectors leave of shared memory
    grid = (triton.cdiv(states, tile), triton.cdiv(states, tile))
    _matrix[grid](
        leaving,
        entering,
        norm,
        matrix,
        sums,
        states,
        width,
        WIDTH=at_once,
        TILE=tile,
        LEAST=LEAST,
        num_warps=8,
    )
    return matrix, sums


def weigh_matrix(counts: Tensor, matrix: Tensor) -> Tensor:
    """counts ∘ P in place of `counts` (Z, Z), and its row sums (Z,) float32."""
    states = len(matrix)
    sums = torch.empty(states, dtype=torch.float32, device=matrix.device)
    _weigh[(states,)](counts, matrix, sums, states, AT_ONCE=2048, num_warps=8)
    return sums


def observe(
    step: tuple[Tensor, ...],
    before: tuple[Tensor, Tensor],
    after: tuple[Tensor, Tensor],
    fixed: tuple[Tensor, Tensor, Tensor],
    results: tuple[Tensor, Tensor],
) -> None:
    """One step forward.

    step: mass (B, Z), logits (B, Z), shift (B,), fresh (B,) bool, inside (B,) bool.
    before, after: w (B, Z) and total (B,). fixed: log start, r and norm, each (Z,).
    results: log p(x_t | x_<t) (B,), 0 where the sequence is over, and the sum it is the logarithm
    of, relative to the likeliest state's emission (B,), 1 there.
    """
    batch, states = step[0].shape
    size, warps = _size(states)
    _observe[(batch,)](*step, *before, *after, *fixed, *results, states, SIZE=size, num_warps=warps)


def step_back(
    step: tuple[Tensor, Tensor],
    after: tuple[Tensor, Tensor],
    fixed: tuple[Tensor, ...],
    results: tuple[Tensor, Tensor],
) -> None:
    """One step back.

    step: logits (B, Z), inside (B,) bool. after: v · Pᵀ of t + 1 (B, Z), and whether it counts (B,)
    bool. fixed: r and norm (Z,). results: v (B, Z), which sums to one, and its log size (B,).
    """
    batch, states = step[0].shape
    size, warps = _size(states)
    _step_back[(batch,)](*step, *after, *fixed, *results, states, SIZE=size, num_warps=warps)


def combine(
    ahead: tuple[Tensor, Tensor, Tensor],
    behind: tuple[Tensor, Tensor, Tensor, Tensor],
    words: tuple[Tensor, Tensor, Tensor],
    weights: tuple[Tensor, Tensor],
    results: tuple[Tensor, Tensor],
) -> None:
    """Expected moves and uses of all positions.

    ahead: w (T, B, Z), total (T, B) and r (Z,). behind: v (T, B, Z), v · Pᵀ of t + 1 (T, B, Z), the
    size of v (T, B), and whether t + 1 counts (T, B) bool. words: shift, gained, inside (T, B).
    weights: that of the sequence (B,), and that of t's moves divided by the total before t (T, B),
    0 where there are none. results: what the moves into t need beside w (T, B, Z), and the weighted
    p(z_t | x) (T, B, Z). Not finite where the two sweeps have no state in common.
    """
    time, batch, states = behind[0].shape
    size, warps = _size(states)
    _combine[(time * batch,)](
        *ahead,
        *behind,
        *words,
        *weights,
        *results,
        batch,
        states,
        SIZE=size,
        num_warps=warps,
    )


def _size(states: int) -> tuple[int, int]:
    size = max(16, triton.next_power_of_2(states))
    return size, min(16, max(4, size // 512))


@triton.jit
def _matrix(
    leaving, entering, norm, matrix, sums, states, width, WIDTH: tl.constexpr, TILE: tl.constexpr,
    LEAST: tl.constexpr,
):  # fmt: skip
    i = tl.program_id(0) * TILE + tl.arange(0, TILE)
    j = tl.program_id(1) * TILE + tl.arange(0, TILE)
    h = tl.arange(0, WIDTH)
    leave = tl.load(
        leaving + i[:, None] * width + h[None, :],
        mask=(i < states)[:, None] & (h < width)[None, :],
        other=0.0,
    )
    enter = tl.load(
        entering + j[:, None] * width + h[None, :],
        mask=(j < states)[:, None] & (h < width)[None, :],
        other=0.0,
    )
    of_row = tl.load(norm + i, mask=i < states, other=0.0)
    inside = (i < states)[:, None] & (j < states)[None, :]
    probs = tl.exp2((tl.dot(leave, tl.trans(enter)) - of_row[:, None]) * LOG2_E)
    probs = tl.where(inside, tl.maximum(probs, LEAST), 0.0).to(matrix.dtype.element_ty)
    cell = i.to(tl.int64)[:, None] * states + j[None, :]
    tl.store(matrix + cell, probs, mask=inside)
    tl.atomic_add(sums + i, tl.sum(probs.to(tl.float32), 1), mask=i < states, sem="relaxed")


@triton.jit
def _weigh(counts, matrix, sums, states, AT_ONCE: tl.constexpr):
    i = tl.program_id(0).to(tl.int64)
    total = tl.zeros([AT_ONCE], tl.float32)
    for first in range(0, states, AT_ONCE):
        j = first + tl.arange(0, AT_ONCE)
        cell = i * states + j
        value = tl.load(counts + cell, mask=j < states, other=0.0).to(tl.float32)
        value *= tl.load(matrix + cell, mask=j < states, other=0.0).to(tl.float32)
        value = value.to(counts.dtype.element_ty)
        total += value.to(tl.float32)
        tl.store(counts + cell, value, mask=j < states)
    tl.store(sums + i, tl.sum(total, 0))


@triton.jit
def _observe(
    mass, logits, shift, fresh, inside, w_before, total_before, w_after, total_after, start,
    row_sums, norm, gained, relative, states, SIZE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    j = tl.arange(0, SIZE)
    here = row.to(tl.int64) * states + j
    if tl.load(inside + row) == 0:
        same = tl.load(w_before + here, mask=j < states, other=0.0)
        tl.store(w_after + here, same, mask=j < states)
        tl.store(total_after + row, tl.load(total_before + row))
        tl.store(gained + row, 0.0)
        tl.store(relative + row, 1.0)
    else:
        if tl.load(fresh + row) != 0:
            predicted = tl.exp(tl.load(start + j, mask=j < states, other=-float("inf")))
        else:
            total = tl.load(total_before + row)
            predicted = tl.load(mass + here, mask=j < states, other=0.0)
            predicted = predicted / tl.where(total > 0, total, 1.0)
        e = tl.load(logits + here, mask=j < states, other=-float("inf")) + tl.load(shift + row)
        e -= tl.load(norm + j, mask=j < states, other=0.0)
        top = tl.max(e, 0)
        top = tl.where(top > -float("inf"), top, 0.0)
        joint = predicted * tl.exp(e - top)
        found = tl.sum(joint, 0)
        alpha = joint / tl.where(found > 0, found, 1.0)
        r = tl.load(row_sums + j, mask=j < states, other=1.0)
        w = (alpha / r).to(w_after.dtype.element_ty)
        tl.store(w_after + here, w, mask=j < states)
        tl.store(total_after + row, tl.sum(tl.where(j < states, w.to(tl.float32) * r, 0.0), 0))
        tl.store(gained + row, top + tl.log(found))
        tl.store(relative + row, found)


@triton.jit
def _step_back(
    logits, inside, back, counts, row_sums, norm, v, log_size, states, SIZE: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    j = tl.arange(0, SIZE)
    here = row.to(tl.int64) * states + j
    if tl.load(inside + row) == 0:
        tl.store(v + here, tl.zeros([SIZE], v.dtype.element_ty), mask=j < states)
        tl.store(log_size + row, 0.0)
    else:
        beta = tl.full([SIZE], 1.0, tl.float32)
        if tl.load(counts + row) != 0:
            beta = tl.load(back + here, mask=j < states, other=0.0)
            beta = beta / tl.load(row_sums + j, mask=j < states, other=1.0)
        e = tl.load(logits + here, mask=j < states, other=-float("inf"))
        e -= tl.load(norm + j, mask=j < states, other=0.0)
        top = tl.max(e, 0)
        top = tl.where(top > -float("inf"), top, 0.0)
        value = beta * tl.exp(e - top)
        found = tl.sum(value, 0)
        value = value / tl.where(found > 0, found, 1.0)
        tl.store(v + here, value.to(v.dtype.element_ty), mask=j < states)
        tl.store(log_size + row, top + tl.log(found))


@triton.jit
def _combine(
    w, total, row_sums, v, back, log_size, counts, shift, gained, inside, weight, source, moves,
    used, batch, states, SIZE: tl.constexpr,
):  # fmt: skip
    place = tl.program_id(0)
    j = tl.arange(0, SIZE)
    here = place.to(tl.int64) * states + j
    share = tl.load(weight + place % batch)
    if (tl.load(inside + place) == 0) | (share == 0):
        tl.store(moves + here, tl.zeros([SIZE], moves.dtype.element_ty), mask=j < states)
        tl.store(used + here, tl.zeros([SIZE], used.dtype.element_ty), mask=j < states)
    else:
        r = tl.load(row_sums + j, mask=j < states, other=1.0)
        joint = tl.load(w + here, mask=j < states, other=0.0).to(tl.float32)
        if tl.load(counts + place) != 0:
            joint *= tl.load(back + here, mask=j < states, other=0.0)
        else:
            joint *= r
        found = tl.sum(joint, 0)
        probs = joint / found * share
        tl.store(used + here, probs.to(used.dtype.element_ty), mask=j < states)
        found /= tl.load(total + place)
        odds = tl.load(log_size + place) + tl.load(shift + place) - tl.load(gained + place)
        factor = tl.load(source + place)
        factor = tl.where(factor == 0, 0.0, factor * tl.exp(odds - tl.log(found)))
        value = tl.load(v + here, mask=j < states, other=0.0).to(tl.float32) * factor
        tl.store(moves + here, value.to(moves.dtype.element_ty), mask=j < states)
