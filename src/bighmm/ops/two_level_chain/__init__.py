"""The likelihood of windows of words in blocks, with two-level transitions, in one pass.

States of block m are m·K … (m+1)·K-1. Between two words lies a tile

    log p(j | i) = log p(m | i) + leaving_i · entering_j − log Σ_j' exp(leaving_i · entering_j')

over the states j of the second word's block m, to which the emission of that word is added. Where a
text starts anew every row of the tile is the start distribution. `ops.chain` sums over the paths.

With N the expected moves of a tile, γ their sums along rows and p the probabilities within the
block, the gradient of the logits is N − p γ, and that of log p(m | i) is γ. The backward pass makes
the tile again from its vectors, so that no more than the sweeps need is kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bighmm.ops.impl import use_triton
from bighmm.ops.matmul import as_operand, join_side_stream, on_side_stream
from bighmm.ops.two_level_chain import pairs, plain
from bighmm.ops.two_level_chain.plain import Vectors, shared_tiles
from bighmm.ops.windows import Windows

__all__ = ["Vectors", "shared_tiles", "two_level_chain"]


def two_level_chain(
    windows: Windows, start: Tensor, emitted: Tensor, vectors: Vectors, impl: str = "auto"
) -> tuple[Tensor, Tensor]:
    """log p of each window given what came before (B,), and log_alpha (B, K) at its end.

    start (Z,) log p(z_1), emitted (B, T, K) log p(x_t | z_t). The Triton form multiplies in
    bfloat16: the vectors must have such values already (see `rounding`). impl: as in `ops`; "pairs"
    is the form for CPUs.
    """
    if impl == "pairs":
        return pairs.two_level_chain(windows, start, emitted, vectors)
    if not use_triton(start, impl):
        return plain.two_level_chain(windows, start, emitted, vectors)
    return _TwoLevelChain.apply(windows, start, emitted, *vectors)


class _TwoLevelChain(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, windows: Windows, start: Tensor, emitted: Tensor, *given: Tensor
    ) -> tuple[Tensor, Tensor]:
        from bighmm.ops.chain import triton as chains
        from bighmm.ops.two_level_chain import triton
        from bighmm.ops.windows.triton import describe

        leaving, entering, choice = (x.contiguous() for x in given)
        vectors = Vectors(as_operand(leaving), as_operand(entering), choice)
        chain, emitted = describe(windows), emitted.contiguous()
        tiles, factors = triton.make_tiles(chain, vectors, start, emitted)
        with_backward = any(ctx.needs_input_grad)
        first = windows.carried.contiguous()
        grads = triton.empty_gradients(vectors) if with_backward else []
        with on_side_stream(start.device):  # the sweeps leave most of a GPU idle
            for grad in grads:
                grad.zero_()
        sweeps = chains.sweep(chain.lengths, first, tiles, with_backward)
        join_side_stream(start.device)
        log_sum, vector = chains.ends(chain.lengths, sweeps)
        if with_backward:
            ctx.chain, ctx.grads = chain, grads
            ctx.save_for_backward(emitted, log_sum, *vectors, *factors, *sweeps)
        ctx.mark_non_differentiable(vector)
        return log_sum, vector

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
        from bighmm.ops.chain.triton import Sweeps
        from bighmm.ops.two_level_chain import triton
        from bighmm.ops.windows.triton import marginals

        emitted, log_sum, *saved = ctx.saved_tensors
        vectors, factors = Vectors(*saved[:3]), triton.Factors(*saved[3:6])
        weight = torch.where(log_sum > -torch.inf, grad, 0.0)
        uses = marginals(ctx.chain, Sweeps(*saved[6:]), weight, len(vectors.leaving))
        grads, ctx.grads = ctx.grads, None
        triton.pull_back(ctx.chain, vectors, factors, emitted, uses, weight, grads)
        return None, uses.of_start, uses.of_emitted, *grads
