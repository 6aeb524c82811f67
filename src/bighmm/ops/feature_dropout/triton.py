"""Dropout on the numbers of vectors in one pass, forward and backward."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bighmm.ops.matmul import empty_operand
from bighmm.ops.rounding.triton import to_bfloat16_value
from bighmm.ops.state_dropout.triton import scrambled

ROWS = 16  # per program


def drop(
    x: Tensor,
    key: Tensor,
    ids: Tensor | None,
    rate: float,
    lowest: int,
    place: int,
    shared: bool,
    *,
    rounded: bool,
) -> tuple[Tensor, Tensor]:
    """x (N, H) with dropout; with `rounded` in the values of bfloat16, and also as an operand.

    lowest: the smallest noise of what is kept.
    """
    x = x.contiguous()
    result = torch.empty_like(x)
    operand = empty_operand(x.shape, x.device) if rounded else result
    _drop[(triton.cdiv(len(x), ROWS),)](
        x,
        key,
        key if ids is None else ids,
        result,
        operand,
        *x.shape,
        lowest,
        1 / (1 - rate),
        place,
        SHARED=shared,
        NAMED=ids is not None,
        ROUNDED=rounded,
        WIDTH=triton.next_power_of_2(x.shape[1]),
        ROWS=ROWS,
        num_warps=4,
    )
    return result, operand


@triton.jit
def _drop(
    x,
    key,
    ids,
    result,
    operand,
    count,
    width,
    lowest,
    factor,
    place,
    SHARED: tl.constexpr,
    NAMED: tl.constexpr,
    ROUNDED: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
):
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    h = tl.arange(0, WIDTH)
    inside = (r < count)[:, None] & (h < width)[None, :]
    cell = r[:, None] * width + h[None, :]
    row = r
    if NAMED:
        row = tl.load(ids + r, mask=r < count, other=0)
    if SHARED:
        row = row * 0
    noise = scrambled(scrambled(tl.load(key) + place) + (row[:, None] * width + h[None, :]))
    value = tl.load(x + cell, mask=inside, other=0.0)
    value = tl.where(noise >= lowest, value * factor, 0.0)
    if ROUNDED:
        value = to_bfloat16_value(value)
        tl.store(operand + cell, value.to(operand.dtype.element_ty), mask=inside)
    tl.store(result + cell, value, mask=inside)
