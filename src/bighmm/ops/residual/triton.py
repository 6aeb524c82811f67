"""What lies between the products of the residual network, as Triton kernels over rows.

Gradients that are sums over all rows are made in two steps: each program writes the sum over its
own rows, and `summed` adds these up. Many programs that add to one place would wait for each other.
Programs that sum over rows have one warp: its threads have the same columns of every row, so that
nothing goes from one thread to another until all rows are done.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bighmm.ops.matmul import empty_operand
from bighmm.ops.rounding.triton import to_bfloat16_value

ROWS = 16  # per program
CELLS = 4096  # of a tensor that a program holds at once
NORMED = 8  # rows per program of the norm
PARTS = 64  # programs whose sums are added up by one
SUMS = 4  # over rows: of the norm's scale and shift, and of both biases


def add_relu(product: Tensor, bias: Tensor) -> Tensor:
    """relu(product + bias), in place of `product` (N, W)."""
    rows, width = product.shape
    _add_relu[(triton.cdiv(rows, ROWS), triton.cdiv(width, 256))](
        product, bias, rows, width, WIDTH=256, ROWS=ROWS, AT_ONCE=ROWS, num_warps=4
    )
    return product


def add_norm(
    u: Tensor, bias: Tensor, y: Tensor, scale: Tensor, shift: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """LayerNorm(relu(u + bias) + y) (N, H) twice, and the mean and 1 / deviation of each row.

    y (N, H) may be columns of a wider tensor. The result has the values of bfloat16, as kernels
    will multiply it (see `rounding`): once in float32, and once as their operand.
    """
    rows, width = u.shape
    result = torch.empty(rows, width, dtype=torch.float32, device=u.device)
    operand = empty_operand(u.shape, u.device)
    centre = torch.empty(rows, dtype=torch.float32, device=u.device)
    spread = torch.empty_like(centre)
    _add_norm[(triton.cdiv(rows, NORMED),)](
        u, bias, y, scale, shift, result, operand, centre, spread, rows, width, y.stride(0),
        epsilon, **_shape(width) | {"ROWS": NORMED}, num_warps=4,
    )  # fmt: skip
    return result, operand, centre, spread


def empty_sums(number: int, rows: int, width: int, device: torch.device) -> Tensor:
    """For the sums (number, P, SUMS, H) of each program over its own rows, for some networks."""
    programs = triton.cdiv(rows, ROWS)
    return torch.empty(number, programs, SUMS, width, dtype=torch.float32, device=device)


def add_norm_backward(
    grad: Tensor,
    u: Tensor,
    bias: Tensor,
    y: Tensor,
    scale: Tensor,
    centre: Tensor,
    spread: Tensor,
    sums: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gradients of z = relu(u + bias) + y and of u (N, H).

    What the gradients of scale, shift and bias are sums of goes to `sums` (P, SUMS, H).
    """
    rows, width = u.shape
    of_z, of_u = torch.empty_like(u), torch.empty_like(u)
    _add_norm_backward[(triton.cdiv(rows, ROWS),)](
        grad, u, bias, y, scale, centre, spread, of_z, of_u, sums, rows, width, y.stride(0),
        **_shape(width, 1024), num_warps=_summing_warps(width), SUMS=SUMS,
    )  # fmt: skip
    return of_z, of_u


def add_relu_backward(
    product: Tensor, beside: Tensor, y: Tensor, result: Tensor, sums: Tensor
) -> None:
    """(product + beside) where y > 0 into `result`.

    y and result (N, H) may be columns of wider tensors. What the sum over rows is made of goes to
    `sums` (P, SUMS, H), after those of the norm.
    """
    rows, width = product.shape
    _add_relu_backward[(triton.cdiv(rows, ROWS),)](
        product, beside, y, result, sums, rows, width, y.stride(0), result.stride(0),
        **_shape(width, 512), num_warps=_summing_warps(width), SUMS=SUMS,
    )  # fmt: skip


def summed(sums: Tensor) -> Tensor:
    """The sums (number, SUMS, H) over all programs."""
    number, programs, _, width = sums.shape
    total = torch.zeros(number, SUMS, width, dtype=torch.float32, device=sums.device)
    columns = SUMS * width
    _summed[(number, triton.cdiv(columns, 32), triton.cdiv(programs, PARTS))](
        sums, total, programs, columns, PARTS=PARTS, AT_ONCE=PARTS, COLUMNS=32, num_warps=1
    )
    return total


def weighted_sum(x: Tensor, weights: Tensor) -> Tensor:
    """Σ_n weights_n x_n (H,) of rows x (N, H)."""
    rows, width = x.shape
    total = torch.zeros(width, dtype=torch.float32, device=x.device)
    shape = _shape(width) | {"ROWS": 4 * ROWS}
    _weighted_sum[(triton.cdiv(rows, shape["ROWS"]),)](
        x, weights, total, rows, width, **shape, num_warps=8
    )
    return total


def row_products(x: Tensor, weight: Tensor) -> Tensor:
    """x · weight (N,) for rows x (N, H)."""
    rows, width = x.shape
    result = torch.empty(rows, dtype=torch.float32, device=x.device)
    _row_products[(triton.cdiv(rows, ROWS),)](
        x, weight, result, rows, width, **_shape(width), num_warps=4
    )
    return result


def _summing_warps(width: int) -> int:
    return 1 if width <= 512 else 4


def _shape(width: int, cells: int = CELLS) -> dict[str, int]:
    padded = triton.next_power_of_2(width)
    return {"WIDTH": padded, "ROWS": ROWS, "AT_ONCE": max(1, min(NORMED, cells // padded))}


@triton.jit
def _add_relu(
    product, bias, rows, width, WIDTH: tl.constexpr, ROWS: tl.constexpr, AT_ONCE: tl.constexpr
):
    h = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    b = tl.load(bias + h, mask=h < width, other=0.0)
    for offset in range(0, ROWS, AT_ONCE):
        row = tl.program_id(0).to(tl.int64) * ROWS + offset + tl.arange(0, AT_ONCE)
        cell = row[:, None] * width + h[None, :]
        inside = (row < rows)[:, None] & (h < width)[None, :]
        value = tl.load(product + cell, mask=inside, other=0.0).to(tl.float32) + b[None, :]
        tl.store(product + cell, tl.maximum(value, 0.0).to(product.dtype.element_ty), mask=inside)


@triton.jit
def _add_relu_backward(
    product, beside, y, result, sums, rows, width, y_stride, result_stride, SUMS: tl.constexpr,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    h = tl.arange(0, WIDTH)
    total = tl.zeros([AT_ONCE, WIDTH], tl.float32)
    for offset in range(0, ROWS, AT_ONCE):
        row = tl.program_id(0).to(tl.int64) * ROWS + offset + tl.arange(0, AT_ONCE)
        cell = row[:, None] * width + h[None, :]
        inside = (row < rows)[:, None] & (h < width)[None, :]
        value = tl.load(product + cell, mask=inside, other=0.0).to(tl.float32)
        value += tl.load(beside + cell, mask=inside, other=0.0).to(tl.float32)
        of_y = row[:, None] * y_stride + h[None, :]
        active = tl.load(y + of_y, mask=inside, other=0.0).to(tl.float32) > 0
        value = tl.where(active, value, 0.0)
        total += value
        place = row[:, None] * result_stride + h[None, :]
        tl.store(result + place, value.to(result.dtype.element_ty), mask=inside)
    sums += (tl.program_id(0) * SUMS + 3) * width
    tl.store(sums + h, tl.sum(total, 0), mask=h < width)


@triton.jit
def _add_norm(
    u, bias, y, scale, shift, result, operand, centre, spread, rows, width, y_stride, epsilon,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    h = tl.arange(0, WIDTH)
    b = tl.load(bias + h, mask=h < width, other=0.0)
    gain = tl.load(scale + h, mask=h < width, other=0.0)
    moved = tl.load(shift + h, mask=h < width, other=0.0)
    for offset in range(0, ROWS, AT_ONCE):
        row = tl.program_id(0).to(tl.int64) * ROWS + offset + tl.arange(0, AT_ONCE)
        cell = row[:, None] * width + h[None, :]
        inside = (row < rows)[:, None] & (h < width)[None, :]
        z = tl.load(u + cell, mask=inside, other=0.0).to(tl.float32) + b[None, :]
        of_y = row[:, None] * y_stride + h[None, :]
        z = tl.maximum(z, 0.0) + tl.load(y + of_y, mask=inside, other=0.0).to(tl.float32)
        z = tl.where((h < width)[None, :], z, 0.0)
        mean = tl.sum(z, 1) / width
        away = tl.where((h < width)[None, :], z - mean[:, None], 0.0)
        inverse = 1.0 / tl.sqrt(tl.sum(away * away, 1) / width + epsilon)
        tl.store(centre + row, mean, mask=row < rows)
        tl.store(spread + row, inverse, mask=row < rows)
        value = to_bfloat16_value(away * inverse[:, None] * gain[None, :] + moved[None, :])
        tl.store(result + cell, value, mask=inside)
        tl.store(operand + cell, value.to(operand.dtype.element_ty), mask=inside)


@triton.jit
def _add_norm_backward(
    grad, u, bias, y, scale, centre, spread, of_z, of_u, sums, rows, width, y_stride, SUMS:
    tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    h = tl.arange(0, WIDTH)
    b = tl.load(bias + h, mask=h < width, other=0.0)
    gain = tl.load(scale + h, mask=h < width, other=0.0)
    of_scale = tl.zeros([AT_ONCE, WIDTH], tl.float32)
    of_shift = tl.zeros([AT_ONCE, WIDTH], tl.float32)
    of_bias = tl.zeros([AT_ONCE, WIDTH], tl.float32)
    for offset in range(0, ROWS, AT_ONCE):
        row = tl.program_id(0).to(tl.int64) * ROWS + offset + tl.arange(0, AT_ONCE)
        cell = row[:, None] * width + h[None, :]
        inside = (row < rows)[:, None] & (h < width)[None, :]
        added = tl.load(u + cell, mask=inside, other=0.0).to(tl.float32) + b[None, :]
        of_y = row[:, None] * y_stride + h[None, :]
        z = tl.maximum(added, 0.0) + tl.load(y + of_y, mask=inside, other=0.0).to(tl.float32)
        mean = tl.load(centre + row, mask=row < rows, other=0.0)
        inverse = tl.load(spread + row, mask=row < rows, other=0.0)
        unit = tl.where(inside, (z - mean[:, None]) * inverse[:, None], 0.0)
        g = tl.load(grad + cell, mask=inside, other=0.0).to(tl.float32)
        of_scale += g * unit
        of_shift += g
        g *= gain[None, :]
        along = tl.sum(g * unit, 1) / width
        g = (g - (tl.sum(g, 1) / width)[:, None] - unit * along[:, None]) * inverse[:, None]
        tl.store(of_z + cell, g.to(of_z.dtype.element_ty), mask=inside)
        g = tl.where(inside & (added > 0), g, 0.0)
        of_bias += g
        tl.store(of_u + cell, g.to(of_u.dtype.element_ty), mask=inside)
    sums += tl.program_id(0) * SUMS * width
    tl.store(sums + h, tl.sum(of_scale, 0), mask=h < width)
    tl.store(sums + width + h, tl.sum(of_shift, 0), mask=h < width)
    tl.store(sums + 2 * width + h, tl.sum(of_bias, 0), mask=h < width)


@triton.jit
def _summed(
    sums, total, programs, columns, PARTS: tl.constexpr, AT_ONCE: tl.constexpr, COLUMNS:
    tl.constexpr,
):  # fmt: skip
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    sums += tl.program_id(0).to(tl.int64) * programs * columns
    found = tl.zeros([AT_ONCE, COLUMNS], tl.float32)
    for first in range(0, PARTS, AT_ONCE):
        p = tl.program_id(2) * PARTS + first + tl.arange(0, AT_ONCE)
        inside = (p < programs)[:, None] & (c < columns)[None, :]
        found += tl.load(sums + p[:, None] * columns + c[None, :], mask=inside, other=0.0)
    place = total + tl.program_id(0) * columns + c
    tl.atomic_add(place, tl.sum(found, 0), mask=c < columns, sem="relaxed")


@triton.jit
def _weighted_sum(
    x, weights, total, rows, width, WIDTH: tl.constexpr, ROWS: tl.constexpr, AT_ONCE: tl.constexpr
):
    h = tl.arange(0, WIDTH)
    found = tl.zeros([AT_ONCE, WIDTH], tl.float32)
    for offset in range(0, ROWS, AT_ONCE):
        row = tl.program_id(0) * ROWS + offset + tl.arange(0, AT_ONCE)
        inside = (row < rows)[:, None] & (h < width)[None, :]
        value = tl.load(x + row[:, None] * width + h[None, :], mask=inside, other=0.0)
        found += value * tl.load(weights + row, mask=row < rows, other=0.0)[:, None]
    tl.atomic_add(total + h, tl.sum(found, 0), mask=h < width, sem="relaxed")


@triton.jit
def _row_products(
    x, weight, result, rows, width, WIDTH: tl.constexpr, ROWS: tl.constexpr, AT_ONCE: tl.constexpr
):
    h = tl.arange(0, WIDTH)
    w = tl.load(weight + h, mask=h < width, other=0.0)
    for offset in range(0, ROWS, AT_ONCE):
        row = tl.program_id(0) * ROWS + offset + tl.arange(0, AT_ONCE)
        inside = (row < rows)[:, None] & (h < width)[None, :]
        value = tl.load(x + row[:, None] * width + h[None, :], mask=inside, other=0.0)
        tl.store(result + row, tl.sum(value * w[None, :], 1), mask=row < rows)
