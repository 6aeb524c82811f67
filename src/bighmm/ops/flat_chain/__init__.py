"""The likelihood of windows of words in blocks, with flat transitions, in one pass.

States of block m are m·K … (m+1)·K-1. Between two words lies a tile of transition log-probabilities
leaving_i · entering_j − c_i, to which the emission of the second word is added; where a text starts
anew every row of the tile is the start distribution. `ops.chain` sums over the paths. The backward
pass turns expected moves into gradients of the vectors without keeping the moves of all positions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bighmm.ops.flat_chain import plain
from bighmm.ops.impl import use_triton
from bighmm.ops.matmul import as_operand
from bighmm.ops.row_norm import SharedRows
from bighmm.ops.windows import Windows

__all__ = ["flat_chain"]


def flat_chain(
    windows: Windows,
    start: Tensor,
    emitted: Tensor,
    vectors: tuple[Tensor, Tensor],
    norm: Tensor | None = None,
    impl: str = "auto",
) -> tuple[Tensor, Tensor]:
    """log p of each window given what came before (B,), and log_alpha (B, K) at its end.

    start (Z,) log p(z_1), emitted (B, T, K) log p(x_t | z_t), vectors: leaving and entering (Z, H).
    norm (Z,) are the normalisers c if they are known and no gradient is due; otherwise they are
    computed here, and their gradient is added to that of the tiles. The Triton form multiplies in
    bfloat16: the vectors must have such values already (see `rounding`).
    """
    if not use_triton(start, impl):
        return plain.flat_chain(windows, start, emitted, vectors, norm)
    return _FlatChain.apply(windows, start, emitted, norm, *vectors)


class _FlatChain(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        windows: Windows,
        start: Tensor,
        emitted: Tensor,
        norm: Tensor | None,
        leaving: Tensor,
        entering: Tensor,
    ) -> tuple[Tensor, Tensor]:
        from bighmm.ops.chain import triton as chains
        from bighmm.ops.flat_chain import triton
        from bighmm.ops.row_norm import triton as row_norms
        from bighmm.ops.windows.triton import describe

        leaving, entering = as_operand(leaving), as_operand(entering)
        chain = describe(windows)
        mean, shared = None, SharedRows.of_step(any(ctx.needs_input_grad))
        if norm is None:
            norm, mean = shared.forward(row_norms.forward, leaving, entering, None, True)
        tiles = triton.make_tiles(chain, leaving, entering, norm, start, emitted.contiguous())
        with_backward = any(ctx.needs_input_grad)
        first = windows.carried.contiguous()
        sweeps = chains.sweep(chain.lengths, first, tiles, with_backward)
        log_sum, vector = chains.ends(chain.lengths, sweeps)
        if with_backward:
            ctx.chain, ctx.shared = chain, shared
            ctx.save_for_backward(leaving, entering, norm, mean, tiles.logs, *sweeps, log_sum)
        ctx.mark_non_differentiable(vector)
        return log_sum, vector

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
        from bighmm.ops.chain.triton import Sweeps
        from bighmm.ops.flat_chain import triton
        from bighmm.ops.row_norm import triton as row_norms
        from bighmm.ops.windows.triton import marginals

        leaving, entering, norm, mean, tiles, *swept, log_sum = ctx.saved_tensors
        weight = torch.where(log_sum > -torch.inf, grad, 0.0)
        uses = marginals(ctx.chain, Sweeps(*swept), weight, len(leaving))
        of_norm: Tensor | None = uses.of_norm
        if mean is None:
            of_leaving = torch.zeros(leaving.shape, dtype=torch.float32, device=leaving.device)
            of_entering = torch.zeros_like(of_leaving)
        else:
            total = ctx.shared.summed(uses.of_norm)
            of_entering, _ = ctx.shared.backward(
                row_norms.backward, leaving, entering, None, norm, total, many_zeros=True
            )
            of_leaving = ctx.shared.of_leaving(total, mean)
            of_norm = None
        triton.pull_back(
            ctx.chain,
            (leaving, entering),
            tiles,
            (uses.left, uses.right),
            weight,
            (of_leaving, of_entering),
        )
        return None, uses.of_start, uses.of_emitted, of_norm, of_leaving, of_entering
