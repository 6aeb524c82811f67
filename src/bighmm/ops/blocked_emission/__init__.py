"""Emissions inside blocks: log p(x | z) for the words of z's block, from inner products.

φ_xz = words_x · emit_z + bias_x        log p(x | z) = φ_xz − log Σ_{x' in the block} exp φ_x'z
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bighmm.ops.blocked_emission import plain
from bighmm.ops.impl import Impl, use_triton
from bighmm.ops.matmul import as_operand
from bighmm.ops.partition import Partition
from bighmm.ops.present_blocks import Present

__all__ = ["blocked_emission"]


def blocked_emission(
    partition: Partition,
    emit: Tensor,
    words: Tensor,
    bias: Tensor,
    impl: Impl = "torch",
    present: Present | None = None,
) -> Tensor:
    """log p(x | z) (V, K) for emit (M·K, H), words (V, H) and bias (V,); differentiable in all.

    With `present`, emit (S·K, H) has the states of these blocks alone, and the rows of words of
    other blocks are undefined.

    The Triton form multiplies in bfloat16: emit and words must have such values already.
    """
    if use_triton(emit, impl):
        return _BlockedEmission.apply(partition, emit, words, bias, present)
    layout = partition.layout
    if present is not None:
        layout = layout.restrict(present.place_of)
    return plain.blocked_emission(layout, emit, words, bias)


class _BlockedEmission(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        partition: Partition,
        emit: Tensor,
        words: Tensor,
        bias: Tensor,
        present: Present | None,
    ) -> Tensor:
        from bighmm.ops.blocked_emission import triton

        ctx.partition, ctx.present = partition, present
        emit, words = as_operand(emit.contiguous()), as_operand(words.contiguous())
        table = triton.forward(partition, emit, words, bias, present)
        ctx.save_for_backward(emit, words, table)
        return table

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        from bighmm.ops.blocked_emission import triton

        emit, words, table = ctx.saved_tensors
        given = (ctx.partition, emit, words, table, grad.contiguous(), ctx.present)
        return None, *triton.backward(*given), None
