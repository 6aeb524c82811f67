"""The likelihood of a window under a dense model on a GPU; see `dense` and `dense_chain_triton`.

Products are in bfloat16 with float32 sums, one per time step and direction, both directions at the
same time; the expected moves of all positions are one large product at the end. The transition
matrix is kept during a pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bighmm.emissions import FactoredEmission
from bighmm.infer.inputs import Carry, Sequences
from bighmm.kernels import beside, operand, product, rejoin
from bighmm.support import Dense
from bighmm.transitions import Factored

if TYPE_CHECKING:
    from bighmm.hmm import HMM

SMALLEST_PROB = 1e-30  # of a word, relative to its likeliest state; below, mass may have been lost


def fits(hmm: HMM) -> bool:
    """Whether the kernels can do this model: dense, of rounded vectors."""
    return (
        isinstance(hmm.support, Dense)
        and isinstance(hmm.transitions, Factored)
        and hmm.transitions.rounded
        and isinstance(hmm.emissions, FactoredEmission)
        and hmm.start.dtype == torch.float32
        and hmm.num_states <= 2**15
    )


def advance(hmm: HMM, window: Sequences, carry: Carry) -> tuple[Tensor, Carry] | None:
    """log p(window | what came before) (B,), differentiable, and the state after it.

    None where numbers became so small that mass may have been lost. A graph that is being captured
    cannot ask for that; its result is then not finite.
    """
    batch, time = window.ids.shape
    if time == 0 or batch == 0:
        return hmm.start.new_zeros(batch), carry
    log_prob, log_alpha, relative = _DenseLogSum.apply(
        window, carry, hmm.start, *hmm.emissions.operands, *hmm.transitions.operands
    )
    capturing = log_prob.is_cuda and torch.cuda.is_current_stream_capturing()
    if not capturing and float(relative.min()) < SMALLEST_PROB:
        return None
    return log_prob, carry.then(hmm, window, log_alpha)


class _DenseLogSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        window: Sequences,
        carry: Carry,
        start: Tensor,
        emit: Tensor,
        words: Tensor,
        bias: Tensor,
        leaving: Tensor,
        entering: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        from bighmm.kernels import dense_chain_triton as kernels
        from bighmm.kernels import row_norm_triton

        batch, time = window.ids.shape
        states = len(start)
        wanted = any(ctx.needs_input_grad)
        emit, words, leaving, entering = map(operand, (emit, words, leaving, entering))
        norm, mean = row_norm_triton.forward(leaving, entering, None, wanted)
        word_norm, mean_word = row_norm_triton.forward(emit, words, bias, wanted)
        matrix, sums = kernels.make_matrix(leaving, entering, norm)
        ids = window.ids.T.reshape(-1)  # time first
        at_words = words.index_select(0, ids)
        logits = product(at_words, emit.T).view(time, batch, states)
        shift = bias.index_select(0, ids).view(time, batch)
        fresh = window.fresh.T.contiguous()
        fresh[0] = carry.fresh
        steps = torch.arange(time, device=ids.device).unsqueeze(1)
        inside = steps < window.lengths

        moved = inside & ~fresh  # positions entered through a transition
        fixed = (start.contiguous(), sums, word_norm)
        behind = None
        if wanted:  # the sweep back needs nothing of the sweep forward: both at the same time
            behind = _SweepBack(logits, moved, matrix.dtype)
            with beside(ids.device):
                behind.run(matrix, inside, fixed)
        w = torch.empty(time + 1, batch, states, dtype=matrix.dtype, device=ids.device)
        total = torch.empty(time + 1, batch, device=ids.device)
        w[0] = carry.log_alpha.exp() / sums
        total[0] = w[0].float() @ sums
        gained = torch.empty(time, batch, device=ids.device)
        relative = torch.empty_like(gained)
        for t in range(time):
            mass = product(w[t], matrix)
            kernels.observe(
                (mass, logits[t], shift[t], fresh[t], inside[t]),
                (w[t], total[t]),
                (w[t + 1], total[t + 1]),
                fixed,
                (gained[t], relative[t]),
            )
        log_alpha = (w[time].float() * sums / total[time].unsqueeze(1)).log()
        if behind is not None:
            rejoin(ids.device)
            ctx.save_for_backward(
                emit, words, bias, leaving, entering, norm, mean, word_norm, mean_word,
                matrix, sums, ids, at_words, shift, fresh, inside, moved, w, total, gained,
                *behind.tensors(),
            )  # fmt: skip
        ctx.mark_non_differentiable(log_alpha, relative)
        log_prob = gained.sum(0).masked_fill(~carry.possible, -torch.inf)
        return log_prob, log_alpha, relative

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *unused: Tensor) -> tuple[Any, ...]:
        from bighmm.kernels import dense_chain_triton as kernels
        from bighmm.kernels import row_norm_triton

        (
            emit, words, bias, leaving, entering, norm, mean, word_norm, mean_word,
            matrix, sums, ids, at_words, shift, fresh, inside, moved, w, total, gained,
            v, back, size, counts_after,
        ) = ctx.saved_tensors  # fmt: skip
        states = len(sums)
        weight = torch.where(gained.sum(0) > -torch.inf, grad, 0.0)
        source = torch.where(moved & (total[:-1] > 0), weight / total[:-1], 0.0)
        moves, used = torch.empty_like(v), torch.empty_like(v)
        kernels.combine(
            (w[1:], total[1:], sums),
            (v, back, size, counts_after),
            (shift, gained, inside),
            (weight, source),
            (moves, used),
        )
        flat_moves, flat_used = moves.view(-1, states), used.view(-1, states)
        expected = w[:-1].reshape(-1, states).T @ flat_moves
        of_norm = -kernels.weigh_matrix(expected, matrix)
        of_entering, _ = row_norm_triton.backward(leaving, entering, None, norm, of_norm)
        of_entering += product(expected.T, leaving)
        of_leaving = product(expected, entering) + of_norm.unsqueeze(1) * mean
        del expected

        both = torch.stack([inside, inside & fresh]).view(2, -1).to(flat_used.dtype)
        in_all, of_start = product(both, flat_used)
        of_word_norm = -in_all
        of_words, of_bias = row_norm_triton.backward(emit, words, bias, word_norm, of_word_norm)
        of_words.index_add_(0, ids, product(flat_used, emit))
        of_bias.index_add_(0, ids, (weight * inside).view(-1))
        of_emit = product(flat_used.T, at_words) + of_word_norm.unsqueeze(1) * mean_word
        return None, None, of_start, of_emit, of_words, of_bias, of_leaving, of_entering


class _SweepBack:
    """Backward vectors of all positions, each up to a factor of its own."""

    def __init__(self, logits: Tensor, moved: Tensor, vector_type: torch.dtype) -> None:
        self.logits = logits
        self.v = torch.empty(logits.shape, dtype=vector_type, device=logits.device)
        self.back = torch.empty_like(logits)  # v · Pᵀ of the position after
        self.size = torch.empty(logits.shape[:2], device=logits.device)  # log factor of v
        self.counts_after = torch.zeros_like(moved)
        self.counts_after[:-1] = moved[1:]

    def run(self, matrix: Tensor, inside: Tensor, fixed: tuple[Tensor, ...]) -> None:
        from bighmm.kernels import dense_chain_triton as kernels

        for t in reversed(range(len(self.v))):
            kernels.step_back(
                (self.logits[t], inside[t]),
                (self.back[t], self.counts_after[t]),
                fixed[1:],
                (self.v[t], self.size[t]),
            )
            if t > 0:
                product(self.v[t], matrix.T, into=self.back[t - 1])

    def tensors(self) -> tuple[Tensor, ...]:
        return self.v, self.back, self.size, self.counts_after
