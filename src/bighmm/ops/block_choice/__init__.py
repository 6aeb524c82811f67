"""log p(block m | state i) of some blocks, from a softmax over all of them.

    log p(m | i) = choosing_i · blocks_m + bias_m − log Σ_m' exp(choosing_i · blocks_m' + bias_m')

On a GPU the logits (Z, M) are one product in bfloat16 with float32 sums; one kernel normalises and
takes the columns that are asked for, and one makes the gradient of the logits.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bighmm.ops.impl import Impl, use_triton
from bighmm.ops.matmul import as_operand, matmul

__all__ = ["block_choice"]

MOST_BLOCKS = 2**14  # that one program normalises over


def block_choice(
    choosing: Tensor,
    blocks: Tensor,
    bias: Tensor,
    present: Tensor | None = None,
    impl: Impl = "torch",
) -> Tensor:
    """log p(m | i) (Z, S) for choosing (Z, G), blocks (M, G), bias (M,) and the blocks `present`
    (S,), or all; differentiable.

    The Triton form multiplies in bfloat16: choosing and blocks must have such values already.
    """
    if len(blocks) <= MOST_BLOCKS and use_triton(choosing, impl):
        return _BlockChoice.apply(choosing, blocks, bias, present)
    table = torch.addmm(bias, choosing, blocks.T).log_softmax(1)
    return table if present is None else table.index_select(1, present)


class _BlockChoice(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, choosing: Tensor, blocks: Tensor, bias: Tensor, present: Tensor | None
    ) -> Tensor:
        from bighmm.ops.block_choice import triton

        choosing, blocks = as_operand(choosing), as_operand(blocks)
        logits = matmul(choosing, blocks.T)
        found, norm = triton.normalise(logits, bias, present)
        ctx.save_for_backward(choosing, blocks, bias, present, logits, norm)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        from bighmm.ops.block_choice import triton

        choosing, blocks, bias, present, logits, norm = ctx.saved_tensors
        of_logits, of_bias = triton.pull_back(
            logits, bias, norm, grad.contiguous(), present, choosing.dtype
        )
        return matmul(of_logits, blocks), matmul(of_logits.T, choosing), of_bias, None
