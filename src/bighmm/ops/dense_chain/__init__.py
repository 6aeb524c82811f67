"""The likelihood of windows of words that any state may emit, on a GPU.

Products are in bfloat16 with float32 sums, one per time step and direction, both directions at the
same time; the expected moves of all positions are one large product at the end. The transition
matrix is kept during a pass. `TransitionPass` and `EmissionPass` say what transitions and emissions
contribute; `passes` has those of tables and of factored logits. `plain` has the sweeps in torch,
for any transitions that can be multiplied with a vector.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bighmm.ops.dense_chain.passes import EmissionPass, TransitionPass
from bighmm.ops.dense_chain.plain import Windows
from bighmm.ops.matmul import join_side_stream, matmul, on_side_stream

__all__ = ["LARGEST", "SMALLEST_PROB", "EmissionPass", "TransitionPass", "Windows", "dense_chain"]

# The probability of a word, relative to its likeliest state. Below this, mass may have been lost,
# or have come from the smallest entries of the matrix, which stand for all but impossible moves.
SMALLEST_PROB = 1e-28
LARGEST = 2**15  # states that the kernels can do


def dense_chain(
    windows: Windows,
    start: Tensor,
    transitions: tuple[TransitionPass, tuple[Tensor, ...]],
    emissions: tuple[EmissionPass, tuple[Tensor, ...]],
) -> tuple[Tensor, Tensor, Tensor]:
    """log p (B,) of each window given what came before, log_alpha (B, Z) at its end, and (B,) the
    smallest probability of a word in it, relative to the word's likeliest state.

    Where the last is below `SMALLEST_PROB` mass may have been lost. Transitions and emissions are
    given with the tensors that they are made of. log p is differentiable in all tensors.
    """
    moves, move_operands = transitions
    words, word_operands = emissions
    log_prob, log_alpha, relative = _DenseChain.apply(
        windows, (moves, words, len(move_operands)), start, *move_operands, *word_operands
    )
    return log_prob, log_alpha, relative.amin(0)


class _DenseChain(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        windows: Windows,
        passes: tuple[TransitionPass, EmissionPass, int],
        start: Tensor,
        *operands: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        from bighmm.ops.dense_chain import triton

        moves, words, own = passes
        batch, time = windows.ids.shape
        states = len(start)
        with_backward = any(ctx.needs_input_grad)
        matrix, sums = moves.matrix(with_backward, *operands[:own])
        ids = windows.ids.T.reshape(-1)  # time first
        logits, shift, norm = words.logits(with_backward, ids, *operands[own:])
        logits, shift = logits.view(time, batch, states), shift.view(time, batch)
        fresh = windows.fresh.T.contiguous()
        fresh[0] = windows.carried_fresh
        steps = torch.arange(time, device=ids.device).unsqueeze(1)
        inside = steps < windows.lengths
        moved = inside & ~fresh  # positions entered through a transition
        fixed = (start.contiguous(), sums, norm)
        behind = None
        if with_backward:  # the sweep back needs nothing of the sweep forward: both at once
            behind = _SweepBack(logits, moved, matrix.dtype)
            with on_side_stream(ids.device):
                behind.run(matrix, inside, fixed)
        w = torch.empty(time + 1, batch, states, dtype=matrix.dtype, device=ids.device)
        total = torch.empty(time + 1, batch, device=ids.device)
        w[0] = windows.carried.exp() / sums
        total[0] = w[0].float() @ sums
        gained = torch.empty(time, batch, device=ids.device)
        relative = torch.empty_like(gained)
        for t in range(time):
            mass = matmul(w[t], matrix)
            triton.observe(
                (mass, logits[t], shift[t], fresh[t], inside[t]),
                (w[t], total[t]),
                (w[t + 1], total[t + 1]),
                fixed,
                (gained[t], relative[t]),
            )
        log_alpha = (w[time].float() * sums / total[time].unsqueeze(1)).log()
        if behind is not None:
            join_side_stream(ids.device)
            ctx.moves, ctx.words = moves, words
            ctx.save_for_backward(
                matrix, sums, shift, fresh, inside, moved, w, total, gained, *behind.tensors()
            )
        ctx.mark_non_differentiable(log_alpha, relative)
        possible = windows.carried.amax(1) > -torch.inf
        return gained.sum(0).masked_fill(~possible, -torch.inf), log_alpha, relative

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *unused: Tensor) -> tuple[Any, ...]:
        from bighmm.ops.dense_chain import triton

        (
            matrix, sums, shift, fresh, inside, moved, w, total, gained,
            v, back, size, counts_after,
        ) = ctx.saved_tensors  # fmt: skip
        states = len(sums)
        weight = torch.where(gained.sum(0) > -torch.inf, grad, 0.0)
        source = torch.where(moved & (total[:-1] > 0), weight / total[:-1], 0.0)
        moves, used = torch.empty_like(v), torch.empty_like(v)
        triton.combine(
            (w[1:], total[1:], sums),
            (v, back, size, counts_after),
            (shift, gained, inside),
            (weight, source),
            (moves, used),
        )
        used = used.view(-1, states)
        of_moves = ctx.moves.gradients(w[:-1].view(-1, states), moves.view(-1, states), matrix)
        both = torch.stack([inside, inside & fresh]).view(2, -1).to(used.dtype)
        in_all, of_start = matmul(both, used)
        of_words = ctx.words.gradients(used, in_all, (weight * inside).view(-1))
        return None, None, of_start, *of_moves, *of_words


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
        from bighmm.ops.dense_chain import triton

        for t in reversed(range(len(self.v))):
            triton.step_back(
                (self.logits[t], inside[t]),
                (self.back[t], self.counts_after[t]),
                fixed[1:],
                (self.v[t], self.size[t]),
            )
            if t > 0:
                matmul(self.v[t], matrix.T, out=self.back[t - 1])

    def tensors(self) -> tuple[Tensor, ...]:
        return self.v, self.back, self.size, self.counts_after
