"""Parts of a table, each taken at most once, and the gradient of taking them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bighmm.ops.matmul import empty_operand
from bighmm.ops.rounding.triton import to_bfloat16_value

ROWS = 16  # per program
COLUMNS = 1024  # of a square, per program


def spread(rows: Tensor, chosen: Tensor, size: int) -> Tensor:
    """(size, H): row n of `rows` (N, H) at place chosen[n], zero elsewhere."""
    width = rows.shape[1]
    place = _places(chosen, size)
    result = torch.empty(size, width, dtype=rows.dtype, device=rows.device)
    _spread[(triton.cdiv(size, ROWS),)](
        rows,
        place,
        result,
        size,
        width,
        WIDTH=triton.next_power_of_2(width),
        ROWS=ROWS,
        num_warps=4,
    )
    return result


def take_rounded(table: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """The rows `chosen` (N,) of table (Z, H), rounded, as float32 and as an operand of products."""
    shape = (len(chosen), table.shape[1])
    rows = torch.empty(shape, dtype=torch.float32, device=table.device)
    operand = empty_operand(shape, table.device)
    _take_rounded[(triton.cdiv(len(chosen), ROWS),)](
        table.contiguous(),
        chosen,
        rows,
        operand,
        *shape,
        WIDTH=triton.next_power_of_2(shape[1]),
        ROWS=ROWS,
        num_warps=4,
    )
    return rows, operand


def take_square(table: Tensor, chosen: Tensor) -> Tensor:
    """(N, N): the rows `chosen` (N,) of table (Z, Z), and of each the same columns."""
    count = len(chosen)
    result = torch.empty(count, count, dtype=table.dtype, device=table.device)
    _take_square[(count, triton.cdiv(count, COLUMNS))](
        table, chosen, result, len(table), count, COLUMNS=COLUMNS, num_warps=4
    )
    return result


def spread_square(square: Tensor, chosen: Tensor, size: int) -> Tensor:
    """(size, size): cell (i, j) of `square` (N, N) at (chosen[i], chosen[j]), zero elsewhere."""
    result = torch.empty(size, size, dtype=square.dtype, device=square.device)
    _spread_square[(size, triton.cdiv(size, COLUMNS))](
        square, _places(chosen, size), result, size, len(chosen), COLUMNS=COLUMNS, num_warps=4
    )
    return result


def _places(chosen: Tensor, size: int) -> Tensor:
    """Where each of `size` rows stands in `chosen`, -1 if it does not."""
    place = torch.full((size,), -1, dtype=torch.int32, device=chosen.device)
    place[chosen] = torch.arange(len(chosen), dtype=torch.int32, device=chosen.device)
    return place


@triton.jit
def _spread(rows, place, result, size, width, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    h = tl.arange(0, WIDTH)
    source = tl.load(place + r, mask=r < size, other=-1).to(tl.int64)
    inside = (source >= 0)[:, None] & (h < width)[None, :]
    value = tl.load(rows + source[:, None] * width + h[None, :], mask=inside, other=0.0)
    tl.store(
        result + r[:, None] * width + h[None, :],
        value,
        mask=(r < size)[:, None] & (h < width)[None, :],
    )


@triton.jit
def _take_rounded(
    table, chosen, rows, operand, count, width, WIDTH: tl.constexpr, ROWS: tl.constexpr
):
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    h = tl.arange(0, WIDTH)
    source = tl.load(chosen + r, mask=r < count, other=0)
    inside = (r < count)[:, None] & (h < width)[None, :]
    value = tl.load(table + source[:, None] * width + h[None, :], mask=inside, other=0.0)
    value = to_bfloat16_value(value)
    cell = r[:, None] * width + h[None, :]
    tl.store(rows + cell, value, mask=inside)
    tl.store(operand + cell, value.to(operand.dtype.element_ty), mask=inside)


@triton.jit
def _take_square(table, chosen, result, size, count, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    source = tl.load(chosen + row) * size
    column = tl.load(chosen + j, mask=j < count, other=0)
    value = tl.load(table + source + column, mask=j < count)
    tl.store(result + row * count + j, value, mask=j < count)


@triton.jit
def _spread_square(square, place, result, size, count, COLUMNS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    source = tl.load(place + row).to(tl.int64)
    column = tl.load(place + j, mask=j < size, other=-1)
    inside = (source >= 0) & (column >= 0)
    value = tl.load(square + source * count + column, mask=inside, other=0.0)
    tl.store(result + row * size + j, value, mask=j < size)
