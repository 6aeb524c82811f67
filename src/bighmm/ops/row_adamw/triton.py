"""A step of AdamW for some rows in one pass: every number is read and written once.

A program has whole rows, so it sees whether a row has a gradient at all. A captured step always has
the same number of rows, and some of them may only fill it up.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from bighmm.ops.row_adamw import Moments, Rates

NUMBERS = 2048  # per program


def update(
    table: Tensor,
    moments: Moments,
    rows: Tensor | None,
    grad: Tensor,
    rates: Rates,
    scale: Tensor | None,
) -> None:
    count, width = grad.shape
    if count == 0:
        return
    tensors = (table, moments.first, moments.second, moments.steps)
    assert all(tensor.is_contiguous() for tensor in tensors)
    columns = triton.next_power_of_2(width)
    together = max(1, NUMBERS // columns)
    _update[(triton.cdiv(count, together),)](
        *tensors,
        grad.contiguous(),
        grad if rows is None else rows,
        torch.as_tensor(rates.lr, dtype=torch.float32, device=table.device),
        grad if scale is None else scale,
        count,
        width,
        *constants(rates),
        ALL=rows is None,
        SCALED=scale is not None,
        ROWS=together,
        WIDTH=columns,
        num_warps=4,
    )


def constants(rates: Rates) -> tuple[float, ...]:
    """The constants of `moved`."""
    beta1, beta2 = rates.beta1, rates.beta2
    return (
        beta1,
        1 - beta1,  # here, as a difference of numbers in float32 has few digits
        math.log2(beta1) if beta1 else -math.inf,
        beta2,
        1 - beta2,
        math.log2(beta2) if beta2 else -math.inf,
        rates.eps,
        rates.weight_decay,
    )


@triton.jit
def moved(
    p, m, v, g, t, lr, beta1, rest1, log_beta1, beta2, rest2, log_beta2, eps, weight_decay
):  # fmt: skip
    """Numbers and their moments after step t, whose gradient is g."""
    # In double precision, as the powers are close to one at first.
    mean_weight = (1.0 - tl.exp2(t * log_beta1)).to(tl.float32)
    square_weight = (1.0 - tl.exp2(t * log_beta2)).to(tl.float32)
    m = m * beta1 + rest1 * g
    v = v * beta2 + rest2 * g * g
    size = tl.sqrt(v / square_weight) + eps
    return p * (1.0 - lr * weight_decay) - (lr / mean_weight) * m / size, m, v


@triton.jit
def _update(
    table, first, second, steps, grad, rows, rate, scale, count, width, beta1, rest1, log_beta1,
    beta2, rest2, log_beta2, eps, weight_decay, ALL: tl.constexpr, SCALED: tl.constexpr, ROWS:
    tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    h = tl.arange(0, WIDTH)
    known = n < count
    inside = known[:, None] & (h < width)[None, :]
    row = n if ALL else tl.load(rows + n, mask=known, other=0).to(tl.int64)
    cell = row[:, None] * width + h[None, :]
    # All that is read comes before what is written, so that it is waited for once.
    g = tl.load(grad + n[:, None] * width + h[None, :], mask=inside, other=0.0)
    m = tl.load(first + cell, mask=inside, other=0.0)
    v = tl.load(second + cell, mask=inside, other=0.0)
    p = tl.load(table + cell, mask=inside, other=0.0)
    passed = tl.load(steps + row, mask=known, other=0) + 1
    lr = tl.load(rate)
    known &= tl.max((g != 0.0).to(tl.int32), 1) > 0
    inside &= known[:, None]
    if SCALED:
        g = g / tl.load(scale)
    t = passed.to(tl.float64)[:, None]
    p, m, v = moved(
        p, m, v, g, t, lr, beta1, rest1, log_beta1, beta2, rest2, log_beta2, eps, weight_decay
    )
    tl.store(first + cell, m, mask=inside)
    tl.store(second + cell, v, mask=inside)
    tl.store(table + cell, p, mask=inside)
    tl.store(steps + row, passed, mask=known)
