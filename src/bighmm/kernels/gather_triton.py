"""Rows of a table, each taken at most once, and the gradient of taking them."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 16  # per program


def spread(rows: Tensor, chosen: Tensor, size: int) -> Tensor:
    """(size, H): row n of `rows` (N, H) at place chosen[n], zero elsewhere."""
    count, width = rows.shape
    place = torch.full((size,), -1, dtype=torch.int32, device=rows.device)
    place[chosen] = torch.arange(count, dtype=torch.int32, device=rows.device)
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


@triton.jit
def _spread(rows, place, result, size, width, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    h = tl.arange(0, WIDTH)
    source = tl.load(place + r, mask=r < size, other=-1)
    inside = (source >= 0)[:, None] & (h < width)[None, :]
    value = tl.load(rows + source[:, None] * width + h[None, :], mask=inside, other=0.0)
    tl.store(
        result + r[:, None] * width + h[None, :],
        value,
        mask=(r < size)[:, None] & (h < width)[None, :],
    )
