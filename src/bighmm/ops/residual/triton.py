"""What lies between the products of the residual network, as Triton kernels over rows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bighmm.ops.rounding.triton import to_bfloat16_value

ROWS = 16  # per program
AT_ONCE = 16  # of these, fewer where they are so wide that registers would not hold them
WIDEST = 512  # that are done so many at once
NORM_AT_ONCE, NORM_WARPS = 4, 4  # of the norm's gradient, whose sums need registers


def add_relu(product: Tensor, bias: Tensor) -> Tensor:
    """relu(product + bias), in place of `product` (N, W)."""
    rows, width = product.shape
    _add_relu[(triton.cdiv(rows, ROWS), triton.cdiv(width, 256))](
        product, bias, rows, width, WIDTH=256, ROWS=ROWS, AT_ONCE=AT_ONCE, num_warps=4
    )
    return product


def add_relu_backward(product: Tensor, beside: Tensor, y: Tensor, result: Tensor) -> Tensor:
    """(product + beside) where y > 0 into `result`, and its sum over rows (H,).

    y and result (N, H) may be columns of wider tensors.
    """
    rows, width = product.shape
    sums = torch.zeros(width, dtype=torch.float32, device=product.device)
    _add_relu_backward[(triton.cdiv(rows, _summed_rows(rows)),)](
        product, beside, y, result, sums, rows, width, y.stride(0), result.stride(0),
        **_shape(width, _summed_rows(rows)), num_warps=8,
    )  # fmt: skip
    return sums


def add_norm(
    u: Tensor, bias: Tensor, y: Tensor, scale: Tensor, shift: Tensor, epsilon: float
) -> tuple[Tensor, Tensor, Tensor]:
    """LayerNorm(relu(u + bias) + y) (N, H), and the mean and 1 / deviation of each row.

    The result is float32 with the values of bfloat16: kernels will multiply it (see `rounded`).
    """
    rows, width = u.shape
    result = torch.empty(rows, width, dtype=torch.float32, device=u.device)
    centre = torch.empty(rows, dtype=torch.float32, device=u.device)
    spread = torch.empty_like(centre)
    _add_norm[(triton.cdiv(rows, ROWS),)](
        u, bias, y, scale, shift, result, centre, spread, rows, width, y.stride(0), epsilon,
        **_shape(width, ROWS), num_warps=4,
    )  # fmt: skip
    return result, centre, spread


def add_norm_backward(
    grad: Tensor, u: Tensor, bias: Tensor, y: Tensor, scale: Tensor, centre: Tensor, spread: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of z = relu(u + bias) + y and of u (N, H), and of scale, shift and bias (3, H)."""
    rows, width = u.shape
    of_z, of_u = torch.empty_like(u), torch.empty_like(u)
    sums = torch.zeros(3, width, dtype=torch.float32, device=u.device)
    shape = _shape(width, _summed_rows(rows)) | {"AT_ONCE": NORM_AT_ONCE}
    _add_norm_backward[(triton.cdiv(rows, _summed_rows(rows)),)](
        grad, u, bias, y, scale, centre, spread, of_z, of_u, sums, rows, width, y.stride(0),
        **shape, num_warps=NORM_WARPS if width <= 256 else 8,
    )  # fmt: skip
    return of_z, of_u, sums


def weighted_sum(x: Tensor, weights: Tensor) -> Tensor:
    """Σ_n weights_n x_n (H,) of rows x (N, H)."""
    rows, width = x.shape
    total = torch.zeros(width, dtype=torch.float32, device=x.device)
    _weighted_sum[(triton.cdiv(rows, _summed_rows(rows)),)](
        x, weights, total, rows, width, **_shape(width, _summed_rows(rows)), num_warps=8
    )
    return total


def row_products(x: Tensor, weight: Tensor) -> Tensor:
    """x · weight (N,) for rows x (N, H)."""
    rows, width = x.shape
    result = torch.empty(rows, dtype=torch.float32, device=x.device)
    _row_products[(triton.cdiv(rows, ROWS),)](
        x, weight, result, rows, width, **_shape(width, ROWS), num_warps=4
    )
    return result


def _summed_rows(rows: int) -> int:
    """Per program of the kernels that also sum over rows: many adds to one place are slow too."""
    return 64 if rows >= 8192 else 16


def _shape(width: int, rows: int) -> dict[str, int]:
    padded = triton.next_power_of_2(width)
    at_once = max(1, min(AT_ONCE, AT_ONCE * WIDEST // padded))
    return {"WIDTH": padded, "ROWS": rows, "AT_ONCE": at_once}


@triton.jit
def _add_relu(
    product, bias, rows, width, WIDTH: tl.constexpr, ROWS: tl.constexpr, AT_ONCE: tl.constexpr
):
    h = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    b = tl.load(bias + h, mask=h < width, other=0.0)
    for offset in range(0, ROWS, AT_ONCE):
        row = tl.program_id(0) * ROWS + offset + tl.arange(0, AT_ONCE)
        cell = row[:, None] * width + h[None, :]
        inside = (row < rows)[:, None] & (h < width)[None, :]
        value = tl.load(product + cell, mask=inside, other=0.0).to(tl.float32) + b[None, :]
        tl.store(product + cell, tl.maximum(value, 0.0).to(product.dtype.element_ty), mask=inside)


@triton.jit
def _add_relu_backward(
    product, beside, y, result, sums, rows, width, y_stride, result_stride,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    h = tl.arange(0, WIDTH)
    summed = tl.zeros([AT_ONCE, WIDTH], tl.float32)
    for offset in range(0, ROWS, AT_ONCE):
        row = tl.program_id(0) * ROWS + offset + tl.arange(0, AT_ONCE)
        cell = row[:, None] * width + h[None, :]
        inside = (row < rows)[:, None] & (h < width)[None, :]
        value = tl.load(product + cell, mask=inside, other=0.0).to(tl.float32)
        value += tl.load(beside + cell, mask=inside, other=0.0).to(tl.float32)
        of_y = row[:, None] * y_stride + h[None, :]
        active = tl.load(y + of_y, mask=inside, other=0.0).to(tl.float32) > 0
        value = tl.where(active, value, 0.0)
        summed += value
        place = row[:, None] * result_stride + h[None, :]
        tl.store(result + place, value.to(result.dtype.element_ty), mask=inside)
    tl.atomic_add(sums + h, tl.sum(summed, 0), mask=h < width, sem="relaxed")


@triton.jit
def _add_norm(
    u, bias, y, scale, shift, result, centre, spread, rows, width, y_stride, epsilon,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    h = tl.arange(0, WIDTH)
    b = tl.load(bias + h, mask=h < width, other=0.0)
    gain = tl.load(scale + h, mask=h < width, other=0.0)
    moved = tl.load(shift + h, mask=h < width, other=0.0)
    for offset in range(0, ROWS, AT_ONCE):
        row = tl.program_id(0) * ROWS + offset + tl.arange(0, AT_ONCE)
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
        value = away * inverse[:, None] * gain[None, :] + moved[None, :]
        tl.store(result + cell, to_bfloat16_value(value), mask=inside)


@triton.jit
def _add_norm_backward(
    grad, u, bias, y, scale, centre, spread, of_z, of_u, sums, rows, width, y_stride,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    h = tl.arange(0, WIDTH)
    b = tl.load(bias + h, mask=h < width, other=0.0)
    gain = tl.load(scale + h, mask=h < width, other=0.0)
    of_scale = tl.zeros([AT_ONCE, WIDTH], tl.float32)
    of_shift = tl.zeros([AT_ONCE, WIDTH], tl.float32)
    of_bias = tl.zeros([AT_ONCE, WIDTH], tl.float32)
    for offset in range(0, ROWS, AT_ONCE):
        row = tl.program_id(0) * ROWS + offset + tl.arange(0, AT_ONCE)
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
    tl.atomic_add(sums + h, tl.sum(of_scale, 0), mask=h < width, sem="relaxed")
    tl.atomic_add(sums + width + h, tl.sum(of_shift, 0), mask=h < width, sem="relaxed")
    tl.atomic_add(sums + 2 * width + h, tl.sum(of_bias, 0), mask=h < width, sem="relaxed")


@triton.jit
def _weighted_sum(
    x, weights, total, rows, width, WIDTH: tl.constexpr, ROWS: tl.constexpr, AT_ONCE: tl.constexpr
):
    h = tl.arange(0, WIDTH)
    summed = tl.zeros([AT_ONCE, WIDTH], tl.float32)
    for offset in range(0, ROWS, AT_ONCE):
        row = tl.program_id(0) * ROWS + offset + tl.arange(0, AT_ONCE)
        inside = (row < rows)[:, None] & (h < width)[None, :]
        value = tl.load(x + row[:, None] * width + h[None, :], mask=inside, other=0.0)
        summed += value * tl.load(weights + row, mask=row < rows, other=0.0)[:, None]
    tl.atomic_add(total + h, tl.sum(summed, 0), mask=h < width, sem="relaxed")


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
