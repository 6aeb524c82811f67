"""Inference when every state may emit every token: a step is a product with the whole matrix.

The filtered state is kept in log space and a step is a product in probability space, repeated in
log space for rows where mass may have been lost (see `chain`). The transition matrix is made in
chunks of rows from the transitions' operands; while it is small it is kept between the steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bighmm.base.caching import gradient_is_due, outside_inference_mode
from bighmm.infer import dense_triton
from bighmm.infer.inputs import CHUNK_ELEMENTS, Carry, Sequences, in_parts
from bighmm.infer.numerics import SMALLEST_SUM, finite_or_zero, recentred
from bighmm.model.transitions import Factored, Table, Transitions
from bighmm.ops import at_once, use_triton

if TYPE_CHECKING:
    from bighmm.hmm import HMM

KEPT_ELEMENTS = 2**26  # up to 8,192 states the matrix is kept between steps: 256 MiB
LARGEST_LOG = 60.0  # exp of this still leaves room for sums in float32


def advance(hmm: HMM, window: Sequences, carry: Carry, impl: str = "auto") -> tuple[Tensor, Carry]:
    """log p(window | what came before) (B,), differentiable, and the state after it."""
    single = window.ids.shape[1] == 1 and impl == "auto" and Move.is_kept(hmm.transitions)
    if not single and use_triton(hmm.start, impl) and dense_triton.fits(hmm):
        log_prob, after, lost = dense_triton.advance(hmm, window, carry)
        if lost is None or not bool(lost.any()):
            return log_prob, after
        if not log_prob.requires_grad:
            rows = torch.nonzero(lost).squeeze(1)
            again, ended = _advance(hmm, window.rows(rows), carry.rows(rows))
            log_alpha = after.log_alpha.index_copy(0, rows, ended.log_alpha)
            return log_prob.index_copy(0, rows, again), replace(after, log_alpha=log_alpha)
    return _advance(hmm, window, carry)


def _advance(hmm: HMM, window: Sequences, carry: Carry) -> tuple[Tensor, Carry]:
    if not _differentiable(hmm):
        move = Move.of(hmm.transitions)
        log_alpha, gained = _forward(move, hmm.start, hmm.emission, window, carry)
        return gained.sum(1), carry.then(hmm, window, _last(log_alpha, window, carry))
    log_prob, log_alpha = _DenseLogSum.apply(
        window, carry, hmm.start, hmm.emission, hmm.transitions.norm, *hmm.transitions.operands
    )
    return log_prob, carry.then(hmm, window, log_alpha)


def _differentiable(hmm: HMM) -> bool:
    return gradient_is_due((hmm.start, *hmm.emissions.operands, *hmm.transitions.operands))


def posterior(hmm: HMM, sequences: Sequences) -> tuple[Tensor, Tensor]:
    """log p (B,) and p(z_t | x_1 … x_T) (B, T, Z); zero in the padding and where p is zero."""
    move = Move.of(hmm.transitions)

    def smooth(part: Sequences) -> tuple[Tensor, Tensor]:
        carry = Carry.at_start(hmm, len(part.ids))
        log_alpha, gained = _forward(move, hmm.start, hmm.emission, part, carry)
        joint = log_alpha + _backward(move, hmm.emission, part, carry)
        probs = (joint - finite_or_zero(joint.logsumexp(2, keepdim=True))).exp()
        total = gained.sum(1)
        inside = _inside(part) & (total > -torch.inf).unsqueeze(1)
        return total, probs * inside.unsqueeze(2)

    log_prob = hmm.start.new_zeros(len(sequences.ids))
    marginals = hmm.start.new_zeros(*sequences.ids.shape, hmm.num_states)
    return in_parts(sequences, hmm.num_states, smooth, (log_prob, marginals))


def viterbi(hmm: HMM, sequences: Sequences) -> tuple[Tensor, Tensor]:
    """Joint log-probability (B,) of the best state path, and the path (B, T).

    The path is -1 in the padding, and where no path is possible.
    """
    best = hmm.start.new_zeros(len(sequences.ids))
    path = torch.full_like(sequences.ids, -1)
    return in_parts(sequences, hmm.num_states, partial(_best_path, hmm), (best, path))


def predict_states(hmm: HMM, carry: Carry) -> Tensor:
    """log p(next state | prefix) (B, Z)."""
    moved = Move.of(hmm.transitions).ahead(carry.log_alpha)
    return torch.where(carry.fresh.unsqueeze(1), hmm.start, moved)


class Move:
    """Products of log-space vectors with the transition matrix, exact whatever the numbers are."""

    def __init__(
        self, transitions: Transitions, norm: Tensor | None = None, keep: bool = True
    ) -> None:
        self.transitions = transitions
        self.norm = transitions.norm if norm is None else norm
        size = transitions.num_states
        step = max(1, CHUNK_ELEMENTS // size)
        self.chunks = [slice(i, min(i + step, size)) for i in range(0, size, step)]
        self.kept: list[Tensor] | None = None
        if keep and size * size <= KEPT_ELEMENTS:
            self.kept = list(self._probs())

    @classmethod
    def of(cls, transitions: Transitions) -> Move:
        """With a matrix that `transitions` keep if it is small and no gradient is due.

        Who asks for one word after the other would make it as often.
        """
        if not cls.is_kept(transitions):
            return cls(transitions)
        found = cls(transitions, keep=False)
        if "_probs" not in transitions.__dict__:
            with outside_inference_mode():
                transitions.__dict__["_probs"] = list(found._probs())
        found.kept = transitions.__dict__["_probs"]
        return found

    @staticmethod
    def is_kept(transitions: Transitions) -> bool:
        small = transitions.num_states**2 <= KEPT_ELEMENTS
        return small and not gradient_is_due(transitions.operands)

    def ahead(self, log_alpha: Tensor) -> Tensor:
        """log Σ_i exp(log_alpha_i) p(j | i): (B, Z) -> (B, Z)."""
        top = finite_or_zero(log_alpha.amax(1, keepdim=True))
        weights = (log_alpha - top).exp()
        mass = torch.zeros_like(weights)
        for rows, probs in self.each():
            mass.addmm_(weights[:, rows], probs)
        result = mass.log() + top
        low = mass < SMALLEST_SUM[mass.dtype]
        if bool(low.any()):
            for some in self._lost(low, log_alpha, transposed=False):
                parts = [
                    (self.log_probs(rows) + log_alpha[some, rows].unsqueeze(2)).logsumexp(1)
                    for rows in self.chunks
                ]
                result[some] = torch.stack(parts).logsumexp(0)
        return result

    def back(self, log_beta: Tensor) -> Tensor:
        """log Σ_j p(j | i) exp(log_beta_j): (B, Z) -> (B, Z)."""
        top = finite_or_zero(log_beta.amax(1, keepdim=True))
        weights = (log_beta - top).exp()
        mass = torch.empty_like(weights)
        for rows, probs in self.each():
            mass[:, rows] = weights @ probs.T
        result = mass.log() + top
        low = mass < SMALLEST_SUM[mass.dtype]
        if bool(low.any()):
            for some in self._lost(low, log_beta, transposed=True):
                parts = [
                    (self.log_probs(rows) + log_beta[some].unsqueeze(1)).logsumexp(2)
                    for rows in self.chunks
                ]
                result[some] = torch.cat(parts, dim=1)
        return result

    def each(self) -> Iterator[tuple[slice, Tensor]]:
        """Chunks of rows of the transition matrix in probability space."""
        return zip(self.chunks, self.kept or self._probs(), strict=True)

    def log_probs(self, rows: slice) -> Tensor:
        return self.transitions.logits(rows) - self.norm[rows].unsqueeze(1)

    def _probs(self) -> Iterator[Tensor]:
        return (self.log_probs(rows).exp_() for rows in self.chunks)

    def _lost(self, low: Tensor, log_vector: Tensor, transposed: bool) -> tuple[Tensor, ...]:
        """Rows of the batch with a low sum that is not rightly zero, as many together as fit."""
        alive = (log_vector > -torch.inf).to(self.norm.dtype)
        reached = torch.zeros_like(alive)
        for rows in self.chunks:
            possible = (self.transitions.logits(rows) > -torch.inf).to(alive.dtype)
            if transposed:
                reached[:, rows] = alive @ possible.T
            else:
                reached.addmm_(alive[:, rows], possible)
        found = torch.nonzero((low & (reached > 0)).any(1)).squeeze(1)
        largest = max(rows.stop - rows.start for rows in self.chunks) * low.shape[1]
        return found.split(max(1, at_once(CHUNK_ELEMENTS, low.device) // largest))


class _DenseLogSum(torch.autograd.Function):
    """log p of a batch; the backward pass gives expected counts.

    With source_t(i) = p(z_{t-1} = i | x_<t) and target_t(j) = p(x_t … x_T | z_t = j) divided by
    p(x_t … x_T | x_<t), the expected transitions are N_ij = p(j | i) Σ_t source_t(i) target_t(j):
    one large product over all positions at the end.
    """

    @staticmethod
    def forward(
        ctx: Any,
        window: Sequences,
        carry: Carry,
        start: Tensor,
        emission: Tensor,
        norm: Tensor,
        *operands: Tensor,
    ) -> tuple[Tensor, Tensor]:
        move = Move(_rebuild(operands), norm)
        log_alpha, gained = _forward(move, start, emission, window, carry)
        ctx.window, ctx.carry, ctx.move = window, carry, move
        ctx.save_for_backward(emission, log_alpha, gained)
        at_end = _last(log_alpha, window, carry)
        ctx.mark_non_differentiable(at_end)
        return gained.sum(1), at_end

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
        emission, log_alpha, gained = ctx.saved_tensors
        window, carry, move = ctx.window, ctx.carry, ctx.move
        size = log_alpha.shape[2]
        log_beta = _backward(move, emission, window, carry)
        weight = torch.where(gained.sum(1) > -torch.inf, grad, 0.0)
        weight = weight.unsqueeze(1) * _inside(window)  # (B, T)

        joint = log_alpha + log_beta
        scale = finite_or_zero(joint.logsumexp(2))
        marginals = (joint - scale.unsqueeze(2)).exp() * weight.unsqueeze(2)
        flat_ids = window.ids.reshape(-1)
        grad_emission = torch.zeros_like(emission)
        grad_emission.index_add_(0, flat_ids, marginals.view(-1, size))
        fresh = _fresh(window, carry)
        grad_start = (marginals * fresh.unsqueeze(2)).view(-1, size).sum(0)

        used = (weight != 0) & ~fresh  # positions entered through a transition
        before = torch.cat([carry.log_alpha.unsqueeze(1), log_alpha], dim=1)[:, :-1]
        log_source = before[used]
        log_target = (_emitted(emission, window) + log_beta)[used]
        log_target -= (finite_or_zero(gained) + scale)[used].unsqueeze(1)
        grad_operands = tuple(torch.zeros_like(x) for x in move.transitions.operands)
        grad_norm = torch.zeros_like(move.norm)
        for rows, counts in _expected_moves(move, log_source, log_target, weight[used]):
            move.transitions.pull_back(rows, counts, grad_operands)
            grad_norm[rows] = -counts.sum(1)
        return None, None, grad_start, grad_emission, grad_norm, *grad_operands


def _expected_moves(
    move: Move, log_source: Tensor, log_target: Tensor, weight: Tensor
) -> Iterator[tuple[slice, Tensor]]:
    """Σ_n weight_n source_n(i) p(j | i) target_n(j), in chunks of rows i: (R, Z).

    Where a target is too large for the type (its state was all but unreachable), that position is
    summed in log space.
    """
    extreme = log_target.amax(1) > LARGEST_LOG
    places = torch.nonzero(extreme).squeeze(1).tolist()
    sources = log_source.exp()
    targets = log_target.masked_fill(extreme.unsqueeze(1), -torch.inf).exp_()
    targets *= weight.unsqueeze(1)
    for rows, probs in move.each():
        counts = (sources[:, rows].T @ targets).mul_(probs)
        for n in places:
            log_counts = move.log_probs(rows) + log_source[n, rows].unsqueeze(1) + log_target[n]
            counts += log_counts.exp_().mul_(weight[n])
        yield rows, counts


def _rebuild(operands: tuple[Tensor, ...]) -> Transitions:
    """The transitions again from tensors that autograd has unwrapped."""
    return Table(*operands) if len(operands) == 1 else Factored(operands[0], operands[1])


def _fresh(window: Sequences, carry: Carry) -> Tensor:
    fresh = window.fresh.clone()
    fresh[:, :1] = carry.fresh.unsqueeze(1)
    return fresh


def _inside(window: Sequences) -> Tensor:
    time = window.ids.shape[1]
    return torch.arange(time, device=window.ids.device) < window.lengths.unsqueeze(1)


def _emitted(emission: Tensor, window: Sequences) -> Tensor:
    batch, time = window.ids.shape
    return emission.index_select(0, window.ids.reshape(-1)).view(batch, time, emission.shape[1])


def _forward(
    move: Move, start: Tensor, emission: Tensor, window: Sequences, carry: Carry
) -> tuple[Tensor, Tensor]:
    """log p(z_t | x_1 … x_t) (B, T, Z), and log p(x_t | x_<t) (B, T), zero in the padding.

    From the first impossible token of a row on, the former is -inf.
    """
    fresh = _fresh(window, carry)
    log_emission = _emitted(emission, window)
    current = carry.log_alpha
    filtered = torch.empty_like(log_emission)
    gained = torch.empty_like(log_emission[..., 0])
    for t in range(window.ids.shape[1]):
        predicted = torch.where(fresh[:, t].unsqueeze(1), start, move.ahead(current))
        joint = predicted + log_emission[:, t]
        gained[:, t] = joint.logsumexp(1)
        current = joint - finite_or_zero(gained[:, t]).unsqueeze(1)
        filtered[:, t] = current
    gained[:, :1].masked_fill_(~carry.possible.unsqueeze(1), -torch.inf)
    lost = (gained == -torch.inf).cumsum(1) > 0
    if bool(lost.any()):
        filtered.masked_fill_(lost.unsqueeze(2), -torch.inf)
    return filtered, gained.masked_fill(~_inside(window), 0.0)


def _backward(move: Move, emission: Tensor, window: Sequences, carry: Carry) -> Tensor:
    """log p(x_{t+1} … x_T | z_t) (B, T, Z), up to a factor per position."""
    fresh = _fresh(window, carry)
    log_emission = _emitted(emission, window)
    result = torch.zeros_like(log_emission)
    for t in reversed(range(window.ids.shape[1] - 1)):
        ahead = log_emission[:, t + 1] + result[:, t + 1]
        ahead = ahead - finite_or_zero(ahead.amax(1, keepdim=True))
        moved = torch.where(fresh[:, t + 1].unsqueeze(1), 0.0, move.back(ahead))
        result[:, t] = torch.where((t + 1 < window.lengths).unsqueeze(1), moved, 0.0)
    return result


def _last(log_alpha: Tensor, window: Sequences, carry: Carry) -> Tensor:
    if window.ids.shape[1] == 0:
        return carry.log_alpha
    place = (window.lengths - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, log_alpha.shape[2])
    return log_alpha.gather(1, place).squeeze(1)


def _best_path(hmm: HMM, part: Sequences) -> tuple[Tensor, Tensor]:
    move = Move.of(hmm.transitions)
    batch, time = part.ids.shape
    log_emission = _emitted(hmm.emission, part)
    scores = torch.zeros_like(log_emission[:, 0]) if time else hmm.start.new_zeros(batch, 1)
    total = scores.new_zeros(batch, dtype=torch.float64)
    pointers = torch.zeros(log_emission.shape, dtype=torch.int32, device=part.ids.device)
    for t in range(time):
        reached, came_from = _best_sources(move, scores)
        anew, any_source = scores.max(1, keepdim=True)
        fresh = part.fresh[:, t].unsqueeze(1)
        reached = torch.where(fresh, anew + hmm.start, reached) + log_emission[:, t]
        pointers[:, t] = torch.where(fresh, any_source, came_from)
        scores = torch.where((t < part.lengths).unsqueeze(1), reached, scores)
        scores, total = recentred(scores, total)
    best, state = scores.max(1)
    path = torch.full_like(part.ids, -1)
    possible = best > -torch.inf
    for t in reversed(range(time)):
        inside = (t < part.lengths) & possible
        path[:, t] = torch.where(inside, state, -1)
        previous = pointers[:, t].gather(1, state.unsqueeze(1)).squeeze(1).long()
        state = torch.where(inside, previous, state)
    return torch.where(part.lengths > 0, (best + total).to(best.dtype), 0.0), path


def _best_sources(move: Move, scores: Tensor) -> tuple[Tensor, Tensor]:
    """max_i scores_i + log p(j | i) and its i, both (B, Z)."""
    best = torch.full_like(scores, -torch.inf)
    source = torch.zeros(scores.shape, dtype=torch.long, device=scores.device)
    for rows in move.chunks:
        log_probs = move.log_probs(rows)
        together = max(1, CHUNK_ELEMENTS // log_probs.numel())
        for part in (slice(b, b + together) for b in range(0, len(scores), together)):
            value, place = (log_probs + scores[part, rows].unsqueeze(2)).max(1)
            better = value > best[part]
            best[part] = torch.where(better, value, best[part])
            source[part] = torch.where(better, place + rows.start, source[part])
    return best, source
