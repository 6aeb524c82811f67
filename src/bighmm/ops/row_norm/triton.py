"""The row normaliser on a GPU: what `row_norm` computes, as two Triton kernels.

The forward kernel is an attention sweep whose keys and values are both the entering vectors: a
program has a tile of rows, runs over all columns, and keeps a running maximum, a running sum and
the weighted sum of the entering vectors. The backward kernel has a tile of columns and runs over
the rows. Where rows are few the columns are divided too, and the parts are put together after.
Operands are bfloat16 (they must have been rounded before, see `rounding`), sums float32.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
PROGRAMS = 132  # a program fills a multiprocessor, of which an H200 has 132; few rows share columns


class Tile(NamedTuple):
    """How a sweep is cut: what a program keeps, what it takes per turn, and its threads."""

    kept: int
    taken: int
    warps: int
    stages: int


def forward_tile(rows: int, width: int) -> Tile:
    if width > 256:
        return Tile(64, 32, 8, 2)
    return Tile(128, 64, 8, 3) if rows > 8192 else Tile(64, 64, 4, 3)


def backward_tile(columns: int, width: int) -> Tile:
    if width > 256:
        return Tile(64, 32, 8, 2)
    return Tile(64, 64, 4, 2) if columns > 8192 else Tile(64, 64, 4, 3)


def forward(
    leaving: Tensor, entering: Tensor, bias: Tensor | None, with_mean: bool
) -> tuple[Tensor, Tensor | None]:
    """c (R,) and, if asked for, Σ_j p_ij entering_j (R, H); operands bfloat16, results float32."""
    (rows, width), columns = leaving.shape, len(entering)
    tile = forward_tile(rows, width)
    tiles = triton.cdiv(rows, tile.kept)
    parts = max(1, min(PROGRAMS // tiles, columns // (4 * tile.taken)))
    per_part = triton.cdiv(triton.cdiv(columns, parts), tile.taken) * tile.taken
    parts = triton.cdiv(columns, per_part)
    norm = torch.empty(parts, rows, dtype=torch.float32, device=leaving.device)
    mean = norm
    if with_mean:
        mean = torch.empty(parts, rows, width, dtype=torch.float32, device=leaving.device)
    _forward[(tiles, parts)](
        leaving,
        entering,
        norm if bias is None else bias,
        norm,
        mean,
        rows,
        columns,
        per_part,
        width,
        WIDTH=max(16, triton.next_power_of_2(width)),
        KEPT=tile.kept,
        TAKEN=tile.taken,
        HAS_BIAS=bias is not None,
        WITH_MEAN=with_mean,
        EVEN=columns % tile.taken == 0 and _fills(width),
        ON_GPU=_on_gpu(),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    if parts == 1:
        return norm[0], mean[0] if with_mean else None
    whole = norm.logsumexp(0)
    if not with_mean:
        return whole, None
    shares = (norm - whole).exp_()
    return whole, torch.einsum("pr,prh->rh", shares, mean)


def backward(
    leaving: Tensor,
    entering: Tensor,
    bias: Tensor | None,
    norm: Tensor,
    grad: Tensor,
    many_zeros: bool = False,
) -> tuple[Tensor, Tensor]:
    """Σ_i g_i p_ij leaving_i (Z, H) and Σ_i g_i p_ij (Z,), both float32.

    With `many_zeros` tiles of rows whose g is all zero are left out.
    """
    columns, width = entering.shape
    of_entering = torch.empty(columns, width, dtype=torch.float32, device=entering.device)
    of_bias = torch.empty(columns, dtype=torch.float32, device=entering.device)
    tile = backward_tile(columns, width)
    tiles = triton.cdiv(len(leaving), tile.taken)
    in_use = torch.empty(tiles + 1 if many_zeros else 1, dtype=torch.int32, device=grad.device)
    if many_zeros:
        _find_tiles[(1,)](
            grad,
            in_use,
            len(leaving),
            tiles,
            TILES=triton.next_power_of_2(tiles),
            TAKEN=tile.taken,
            num_warps=8,
        )
    _backward[(triton.cdiv(columns, tile.kept),)](
        leaving,
        entering,
        norm if bias is None else bias,
        norm,
        grad,
        in_use,
        of_entering,
        of_bias,
        len(leaving),
        columns,
        width,
        WIDTH=max(16, triton.next_power_of_2(width)),
        KEPT=tile.kept,
        TAKEN=tile.taken,
        HAS_BIAS=bias is not None,
        LISTED=many_zeros,
        EVEN=len(leaving) % tile.taken == 0 and _fills(width),
        ON_GPU=_on_gpu(),
        num_warps=tile.warps,
        num_stages=tile.stages,
    )
    return of_entering, of_bias


def _on_gpu() -> bool:
    return not triton.knobs.runtime.interpret


def _fills(width: int) -> bool:
    return width >= 16 and width == triton.next_power_of_2(width)


@triton.jit
def _exp2(x, ON_GPU: tl.constexpr):
    """2^x, zero below the smallest normal number: one instruction instead of four."""
    if ON_GPU:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    return tl.exp2(x)


@triton.jit
def _take(operand, row, rows, h, width, EVEN: tl.constexpr):
    """Rows of an operand; with EVEN nothing can lie outside it."""
    cell = row[:, None] * width + h[None, :]
    if EVEN:
        return tl.load(operand + cell)
    return tl.load(operand + cell, mask=(row < rows)[:, None] & (h < width)[None, :], other=0.0)


@triton.jit
def _forward(
    leaving, entering, bias, norm, mean, rows, columns, per_part, width, WIDTH: tl.constexpr,
    KEPT: tl.constexpr, TAKEN: tl.constexpr, HAS_BIAS: tl.constexpr, WITH_MEAN: tl.constexpr,
    EVEN: tl.constexpr, ON_GPU: tl.constexpr,
):  # fmt: skip
    part = tl.program_id(1)
    norm += part * rows
    mean += part * rows * width
    end = tl.minimum(columns, (part + 1) * per_part)
    row = tl.program_id(0) * KEPT + tl.arange(0, KEPT)
    h = tl.arange(0, WIDTH)
    mine = tl.load(
        leaving + row[:, None] * width + h[None, :],
        mask=(row < rows)[:, None] & (h < width)[None, :],
        other=0.0,
    )
    top = tl.full([KEPT], -float("inf"), tl.float32)
    total = tl.zeros([KEPT], tl.float32)
    weighted = tl.zeros([KEPT, WIDTH if WITH_MEAN else 1], tl.float32)
    for first in range(part * per_part, end, TAKEN):
        column = first + tl.arange(0, TAKEN)
        theirs = _take(entering, column, columns, h, width, EVEN)
        logits = tl.dot(mine, tl.trans(theirs))
        if HAS_BIAS:
            logits += tl.load(bias + column, mask=column < columns, other=0.0)[None, :]
        if not EVEN:
            logits = tl.where((column < columns)[None, :], logits, -float("inf"))
        higher = tl.maximum(top, tl.max(logits, 1))
        weights = _exp2(logits * LOG2_E - (higher * LOG2_E)[:, None], ON_GPU)
        shrink = tl.exp2((top - higher) * LOG2_E)
        total = total * shrink + tl.sum(weights, 1)
        if WITH_MEAN:
            weighted = weighted * shrink[:, None]
            weighted = tl.dot(weights.to(theirs.dtype), theirs, weighted)
        top = higher
    tl.store(norm + row, top + tl.log2(total) * LN_2, mask=row < rows)
    if WITH_MEAN:
        tl.store(
            mean + row[:, None] * width + h[None, :],
            weighted / total[:, None],
            mask=(row < rows)[:, None] & (h < width)[None, :],
        )


@triton.jit
def _find_tiles(grad, in_use, rows, tiles, TILES: tl.constexpr, TAKEN: tl.constexpr):
    """in_use: how many tiles have a gradient that is not zero, then which."""
    tile = tl.arange(0, TILES)
    found = tl.zeros([TILES], tl.int32)
    for offset in range(0, TAKEN):
        row = tile * TAKEN + offset
        value = tl.load(grad + row, mask=row < rows, other=0.0)
        found = tl.where(value != 0, 1, found)
    place = tl.cumsum(found, 0)
    tl.store(in_use + place, tile, mask=found != 0)
    tl.store(in_use, tl.sum(found, 0))


@triton.jit
def _backward(
    leaving, entering, bias, norm, grad, in_use, of_entering, of_bias, rows, columns, width,
    WIDTH: tl.constexpr, KEPT: tl.constexpr, TAKEN: tl.constexpr, HAS_BIAS: tl.constexpr, LISTED:
    tl.constexpr, EVEN: tl.constexpr, ON_GPU: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * KEPT + tl.arange(0, KEPT)
    h = tl.arange(0, WIDTH)
    mine = tl.load(
        entering + column[:, None] * width + h[None, :],
        mask=(column < columns)[:, None] & (h < width)[None, :],
        other=0.0,
    )
    if HAS_BIAS:
        shift = tl.load(bias + column, mask=column < columns, other=0.0)
    total = tl.zeros([KEPT], tl.float32)
    weighted = tl.zeros([KEPT, WIDTH], tl.float32)
    tiles = tl.cdiv(rows, TAKEN)
    if LISTED:
        tiles = tl.load(in_use)
    for place in range(0, tiles):
        first = place * TAKEN
        if LISTED:
            first = tl.load(in_use + 1 + place) * TAKEN
        row = first + tl.arange(0, TAKEN)
        theirs = _take(leaving, row, rows, h, width, EVEN)
        of_row = tl.load(norm + row, mask=row < rows, other=0.0) * LOG2_E
        weight = tl.load(grad + row, mask=row < rows, other=0.0)
        logits = tl.dot(mine, tl.trans(theirs))
        if HAS_BIAS:
            logits += shift[:, None]
        probs = _exp2(logits * LOG2_E - of_row[None, :], ON_GPU) * weight[None, :]
        if HAS_BIAS:
            total += tl.sum(probs, 1)
        weighted = tl.dot(probs.to(theirs.dtype), theirs, weighted)
    tl.store(
        of_entering + column[:, None] * width + h[None, :],
        weighted,
        mask=(column < columns)[:, None] & (h < width)[None, :],
    )
    tl.store(of_bias + column, total, mask=column < columns)
