"""The likelihood of a window under a blocked model with Triton kernels, for `blocked`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bighmm.infer.inputs import Carry, Sequences
from bighmm.kernels import operand
from bighmm.support import Blocked
from bighmm.transitions import Factored

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
    assert isinstance(hmm.support, Blocked) and isinstance(hmm.transitions, Factored)
    emitted = hmm.emission.index_select(0, window.ids.reshape(-1)).view(batch, time, -1)
    before = torch.cat([carry.tokens.unsqueeze(1), window.ids[:, :-1]], dim=1)
    block_of = hmm.support.partition.block_of
    fresh = window.fresh.clone()
    fresh[:, :1] = carry.fresh.unsqueeze(1)
    chain = (
        block_of.index_select(0, before.reshape(-1)).view(batch, time).int(),
        block_of.index_select(0, window.ids.reshape(-1)).view(batch, time).int(),
        fresh,
        window.lengths.int(),
    )
    log_prob, log_alpha = _BlockedLogSum.apply(
        chain, carry.log_alpha, hmm.start, emitted, hmm.transitions.norm, *hmm.transitions.operands
    )
    return log_prob, carry.then(hmm, window, log_alpha)


class _BlockedLogSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        chain: tuple[Tensor, Tensor, Tensor, Tensor],
        first: Tensor,
        start: Tensor,
        emitted: Tensor,
        norm: Tensor,
        leaving: Tensor,
        entering: Tensor,
    ) -> tuple[Tensor, Tensor]:
        from bighmm.kernels import blocked_chain_triton as kernels

        described = kernels.Chain(*chain)
        leaving, entering = operand(leaving), operand(entering)
        tiles, highest = kernels.make_tiles(
            described, leaving, entering, norm, start, emitted.contiguous()
        )
        wanted = any(ctx.needs_input_grad)
        forward, peaks, backward = kernels.sweep(
            described, first.contiguous(), tiles, highest, wanted
        )
        end = described.lengths.long().view(-1, 1)
        at_end = forward.gather(1, end.unsqueeze(2).expand(-1, 1, first.shape[1])).squeeze(1)
        earlier = peaks.sum(1) - peaks.gather(1, end).squeeze(1)
        log_sum = at_end.logsumexp(1) + earlier
        if wanted:
            ctx.chain = described
            ctx.save_for_backward(leaving, entering, tiles, forward, peaks, backward, log_sum)
        ctx.mark_non_differentiable(at_end)
        return log_sum, at_end

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
        from bighmm.kernels import blocked_chain_triton as kernels

        leaving, entering, tiles, forward, peaks, backward, log_sum = ctx.saved_tensors
        weight = torch.where(log_sum > -torch.inf, grad, 0.0)
        sweeps = kernels.Sweeps(forward, peaks, backward)
        uses = kernels.marginals(ctx.chain, sweeps, weight, len(leaving))
        of_leaving, of_entering = kernels.pull_back(
            ctx.chain, leaving, entering, tiles, uses.left, uses.right, weight
        )
        return None, None, uses.of_start, uses.of_emitted, uses.of_norm, of_leaving, of_entering
