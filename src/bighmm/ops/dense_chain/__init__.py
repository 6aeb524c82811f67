"""The likelihood of a window under a dense model on a GPU; see `dense` and `dense_chain_triton`.

Products are in bfloat16 with float32 sums, one per time step and direction, both directions at the
same time; the expected moves of all positions are one large product at the end. The transition
matrix is kept during a pass. Transitions and emissions may each be a table or factored: `Moves` and
`Words` make what the sweeps need of either, and turn expected counts into its gradients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bighmm.infer.inputs import Carry, Sequences
from bighmm.model.emissions import Emissions, FactoredEmission
from bighmm.model.support import Dense
from bighmm.model.transitions import Factored, Transitions
from bighmm.ops import beside, operand, product, rejoin

if TYPE_CHECKING:
    from bighmm.hmm import HMM

# Of a word, relative to its likeliest state: below it, mass may have been lost, or have come from
# what the kernels put in the place of all but impossible moves.
SMALLEST_PROB = 1e-28


def fits(hmm: HMM) -> bool:
    """Whether the kernels can do this model: dense, and made for products of bfloat16 numbers."""
    return (
        isinstance(hmm.support, Dense)
        and hmm.transitions.rounded
        and hmm.start.dtype == torch.float32
        and hmm.num_states <= 2**15
    )


def being_captured(result: Tensor) -> bool:
    """Whether what made `result` becomes part of a graph, so that its numbers cannot be read."""
    return result.is_cuda and torch.cuda.is_current_stream_capturing()


def advance(hmm: HMM, window: Sequences, carry: Carry) -> tuple[Tensor, Carry, Tensor | None]:
    """log p(window | what came before) (B,), differentiable, and the state after it.

    Last comes which rows (B,) may have lost mass, as numbers became too small; None where that is
    not known, since a graph that is being captured cannot ask.
    """
    batch, time = window.ids.shape
    if time == 0 or batch == 0:
        return hmm.start.new_zeros(batch), carry, None
    log_prob, log_alpha, relative = DenseLogSum.apply(
        window,
        carry,
        _moves_of(hmm.transitions),
        _words_of(hmm.emissions),
        hmm.start,
        *hmm.transitions.operands,
        *hmm.emissions.operands,
    )
    lost = None if being_captured(log_prob) else relative.amin(0) < SMALLEST_PROB
    return log_prob, carry.then(hmm, window, log_alpha), lost


class Moves(Protocol):
    """Transitions during one pass."""

    def matrix(self, wanted: bool, *operands: Tensor) -> tuple[Tensor, Tensor]:
        """p(j | i) (Z, Z) as the sweeps multiply it, and its row sums (Z,) float32."""
        ...

    def gradients(self, left: Tensor, entered: Tensor, matrix: Tensor) -> tuple[Tensor, ...]:
        """Of the operands; (leftᵀ · entered) ∘ matrix are the expected moves, for N × Z factors."""
        ...


class Words(Protocol):
    """Emissions during one pass over the words `ids` (N,)."""

    def logits(self, wanted: bool, ids: Tensor, *operands: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(N, Z), a shift (N,) and a norm (Z,): log p(x | z) = logits + shift − norm."""
        ...

    def gradients(self, used: Tensor, in_all: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        """Of the operands, from the weighted p(z_t | x) (N, Z), its sums over N and over Z."""
        ...


def _moves_of(transitions: Transitions) -> Moves:
    return FactoredMoves() if isinstance(transitions, Factored) else TableMoves()


def _words_of(emissions: Emissions) -> Words:
    return FactoredWords() if isinstance(emissions, FactoredEmission) else TableWords()


class FactoredMoves:
    def matrix(self, wanted: bool, *operands: Tensor) -> tuple[Tensor, Tensor]:
        from bighmm.ops import dense_chain_triton, row_norm_triton

        self.leaving, self.entering = map(operand, operands)
        self.norm, self.mean = row_norm_triton.forward(self.leaving, self.entering, None, wanted)
        return dense_chain_triton.make_matrix(self.leaving, self.entering, self.norm)

    def gradients(self, left: Tensor, entered: Tensor, matrix: Tensor) -> tuple[Tensor, ...]:
        from bighmm.ops import dense_chain_triton, row_norm_triton

        assert self.mean is not None, "the pass was asked for gradients"
        counts = left.T @ entered
        of_norm = -dense_chain_triton.weigh_matrix(counts, matrix)
        of_entering, _ = row_norm_triton.backward(
            self.leaving, self.entering, None, self.norm, of_norm
        )
        of_entering += product(counts.T, self.leaving)
        of_leaving = product(counts, self.entering) + of_norm.unsqueeze(1) * self.mean
        return of_leaving, of_entering


class TableMoves:
    def matrix(self, wanted: bool, *operands: Tensor) -> tuple[Tensor, Tensor]:
        from bighmm.ops.dense_chain_triton import LEAST

        (table,) = operands
        probs = self.probs(table).clamp_(min=LEAST).masked_fill_(table == -torch.inf, 0.0)
        rounded = operand(probs)
        return rounded, rounded.sum(1, dtype=torch.float32)

    def probs(self, table: Tensor) -> Tensor:
        return table.softmax(1)

    def gradients(self, left: Tensor, entered: Tensor, matrix: Tensor) -> tuple[Tensor, ...]:
        moves = product(left.T, entered) * matrix
        return (torch.addcmul(moves, -moves.sum(1, keepdim=True), matrix.float()),)


class FactoredWords:
    def logits(self, wanted: bool, ids: Tensor, *operands: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        from bighmm.ops import row_norm_triton

        emit, words, self.bias = operands
        self.ids, self.emit, self.words = ids, operand(emit), operand(words)
        self.norm, self.mean = row_norm_triton.forward(self.emit, self.words, self.bias, wanted)
        self.at = self.words.index_select(0, ids)
        return product(self.at, self.emit.T), self.bias.index_select(0, ids), self.norm

    def gradients(self, used: Tensor, in_all: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        from bighmm.ops import row_norm_triton

        assert self.mean is not None, "the pass was asked for gradients"
        of_words, of_bias = row_norm_triton.backward(
            self.emit, self.words, self.bias, self.norm, -in_all
        )
        of_words.index_add_(0, self.ids, product(used, self.emit))
        of_bias.index_add_(0, self.ids, weights)
        of_emit = product(used.T, self.at) - in_all.unsqueeze(1) * self.mean
        return of_emit, of_words, of_bias


class TableWords:
    def logits(self, wanted: bool, ids: Tensor, *operands: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        (table,) = operands
        self.ids, self.shape = ids, table.shape
        return (
            table.index_select(0, ids),
            table.new_zeros(len(ids)),
            table.new_zeros(table.shape[1]),
        )

    def gradients(self, used: Tensor, in_all: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        of_table = torch.zeros(self.shape, device=used.device)
        return (of_table.index_add_(0, self.ids, used.float()),)


class DenseLogSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        window: Sequences,
        carry: Carry,
        moves: Moves,
        words: Words,
        start: Tensor,
        *operands: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        from bighmm.ops import dense_chain_triton as kernels

        batch, time = window.ids.shape
        states = len(start)
        wanted = any(ctx.needs_input_grad)
        own = 2 if isinstance(moves, FactoredMoves) else 1  # operands of the transitions
        matrix, sums = moves.matrix(wanted, *operands[:own])
        ids = window.ids.T.reshape(-1)  # time first
        logits, shift, norm = words.logits(wanted, ids, *operands[own:])
        logits, shift = logits.view(time, batch, states), shift.view(time, batch)
        fresh = window.fresh.T.contiguous()
        fresh[0] = carry.fresh
        steps = torch.arange(time, device=ids.device).unsqueeze(1)
        inside = steps < window.lengths
        moved = inside & ~fresh  # positions entered through a transition
        fixed = (start.contiguous(), sums, norm)
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
            ctx.moves, ctx.words = moves, words
            ctx.save_for_backward(
                matrix, sums, shift, fresh, inside, moved, w, total, gained, *behind.tensors()
            )
        ctx.mark_non_differentiable(log_alpha, relative)
        log_prob = gained.sum(0).masked_fill(~carry.possible, -torch.inf)
        return log_prob, log_alpha, relative

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, *unused: Tensor) -> tuple[Any, ...]:
        from bighmm.ops import dense_chain_triton as kernels

        (
            matrix, sums, shift, fresh, inside, moved, w, total, gained,
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
        used = used.view(-1, states)
        of_moves = ctx.moves.gradients(w[:-1].view(-1, states), moves.view(-1, states), matrix)
        both = torch.stack([inside, inside & fresh]).view(2, -1).to(used.dtype)
        in_all, of_start = product(both, used)
        of_words = ctx.words.gradients(used, in_all, (weight * inside).view(-1))
        return None, None, None, None, of_start, *of_moves, *of_words


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
        from bighmm.ops import dense_chain_triton as kernels

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
