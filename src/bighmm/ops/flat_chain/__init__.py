"""The likelihood of a window under a blocked model with Triton kernels, for `blocked`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bighmm.infer.chain_triton import at_the_end
from bighmm.infer.inputs import Carry, Sequences
from bighmm.model.support import Blocked
from bighmm.model.transitions import Factored
from bighmm.ops import operand

if TYPE_CHECKING:
    from bighmm.hmm import HMM


def fits(hmm: HMM) -> bool:
    """Whether the kernels can do this model: blocks, and factored logits of rounded vectors."""
    transitions = hmm.transitions
    return (
        isinstance(hmm.support, Blocked)
        and isinstance(transitions, Factored)
        and transitions.rounded
        and hmm.start.dtype == torch.float32
    )


def advance(hmm: HMM, window: Sequences, carry: Carry) -> tuple[Tensor, Carry]:
    """log p(window | what came before) (B,), differentiable, and the state after it."""
    batch, time = window.ids.shape
    if time == 0 or batch == 0:
        return hmm.start.new_zeros(batch), carry
    from bighmm.ops import blocked_chain_triton as kernels

    assert isinstance(hmm.support, Blocked) and isinstance(hmm.transitions, Factored)
    emitted = hmm.emissions.of(window.ids.reshape(-1)).view(batch, time, -1)
    carried = (carry.tokens.contiguous(), carry.fresh.contiguous())
    chain = kernels.describe(
        window.ids, window.fresh, window.lengths, carried, hmm.support.partition.block_of
    )
    operands = hmm.transitions.operands
    with_gradient = torch.is_grad_enabled() and any(x.requires_grad for x in operands)
    norm = None if with_gradient else hmm.transitions.norm
    log_prob, log_alpha = _BlockedLogSum.apply(
        chain, carry.log_alpha, hmm.start, emitted, norm, *operands
    )
    return log_prob, carry.then(hmm, window, log_alpha)


class _BlockedLogSum(torch.autograd.Function):
    """Where `norm` is not given it is computed here: its gradient and that of the tiles are then
    sums in the same tensors."""

    @staticmethod
    def forward(
        ctx: Any,
        chain: Any,  # a `Chain`; Triton need not be there to read this file
        first: Tensor,
        start: Tensor,
        emitted: Tensor,
        norm: Tensor | None,
        leaving: Tensor,
        entering: Tensor,
    ) -> tuple[Tensor, Tensor]:
        from bighmm.ops import blocked_chain_triton as kernels
        from bighmm.ops import chain_triton, row_norm_triton

        leaving, entering = operand(leaving), operand(entering)
        mean = None
        if norm is None:
            norm, mean = row_norm_triton.forward(leaving, entering, None, with_mean=True)
        tiles = kernels.make_tiles(chain, leaving, entering, norm, start, emitted.contiguous())
        wanted = any(ctx.needs_input_grad)
        sweeps = chain_triton.sweep(chain.lengths, first.contiguous(), tiles, wanted)
        log_sum, vector = at_the_end(sweeps, chain.lengths)
        if wanted:
            ctx.chain = chain
            ctx.save_for_backward(leaving, entering, norm, mean, tiles.logs, *sweeps, log_sum)
        ctx.mark_non_differentiable(vector)
        return log_sum, vector

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
        from bighmm.ops import blocked_chain_triton as kernels
        from bighmm.ops import chain_triton, row_norm_triton

        leaving, entering, norm, mean, tiles, *swept, log_sum = ctx.saved_tensors
        weight = torch.where(log_sum > -torch.inf, grad, 0.0)
        uses = kernels.marginals(ctx.chain, chain_triton.Sweeps(*swept), weight, len(leaving))
        of_norm: Tensor | None = uses.of_norm
        if mean is None:
            of_leaving = torch.zeros(leaving.shape, dtype=torch.float32, device=leaving.device)
            of_entering = torch.zeros_like(of_leaving)
        else:
            of_entering, _ = row_norm_triton.backward(
                leaving, entering, None, norm, uses.of_norm, many_zeros=True
            )
            of_leaving = uses.of_norm.unsqueeze(1) * mean
            of_norm = None
        kernels.pull_back(
            ctx.chain,
            (leaving, entering),
            tiles,
            (uses.left, uses.right),
            weight,
            (of_leaving, of_entering),
        )
        return None, None, uses.of_start, uses.of_emitted, of_norm, of_leaving, of_entering
