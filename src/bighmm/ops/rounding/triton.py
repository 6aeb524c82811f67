"""Rounding to the values of bfloat16 in one pass."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bighmm.ops.matmul import empty_operand

SIZE = 4096


def to_bfloat16_values(x: Tensor) -> tuple[Tensor, Tensor]:
    """x rounded, as float32 and as an operand of products."""
    x = x.contiguous()
    result, operand = torch.empty_like(x), empty_operand(x.shape, x.device)
    _round[(triton.cdiv(x.numel(), SIZE),)](x, result, operand, x.numel(), SIZE=SIZE, num_warps=8)
    return result, operand


@triton.jit
def to_bfloat16_value(x):
    """The nearest value of bfloat16, ties to even, as float32."""
    bits = x.to(tl.int32, bitcast=True)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _round(x, result, operand, count, SIZE: tl.constexpr):
    place = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    value = tl.load(x + place, mask=place < count, other=0.0)
    value = to_bfloat16_value(value)
    tl.store(result + place, value, mask=place < count)
    tl.store(operand + place, value.to(operand.dtype.element_ty), mask=place < count)
