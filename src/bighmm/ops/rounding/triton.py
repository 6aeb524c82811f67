"""Rounding to the values of bfloat16 in one pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

SIZE = 4096


def to_bfloat16_values(x: Tensor) -> Tensor:
    x = x.contiguous()
    result = torch.empty_like(x)
    _round[(triton.cdiv(x.numel(), SIZE),)](x, result, x.numel(), SIZE=SIZE, num_warps=8)
    return result


@triton.jit
def to_bfloat16_value(x):
    """The nearest value of bfloat16, ties to even, as float32."""
    bits = x.to(tl.int32, bitcast=True)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _round(x, result, count, SIZE: tl.constexpr):
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    value = tl.load(x + place, mask=place < count, other=0.0)
    tl.store(result + place, to_bfloat16_value(value), mask=place < count)
