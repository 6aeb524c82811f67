"""The likelihood with two-level transitions on a CPU: one matrix for each pair of blocks.

Positions whose words are in the same two blocks share p(j | m, i), a K × K matrix. A step of a
sweep is a product with it; log p(m | i) is added before, the emission after. The backward pass sums
the expected moves of all positions of a pair and turns them into gradients once.

These matrices are all that is held of all pairs. What else is as large is made for some pairs at a
time and used while it is in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bighmm.ops import memory
from bighmm.ops.log_matmul import finite_or_zero, log_product
from bighmm.ops.two_level_chain.plain import Vectors
from bighmm.ops.windows import Windows

LARGEST_LOG = 60.0  # exp of this still leaves room for sums in float32


def two_level_chain(
    windows: Windows, start: Tensor, emitted: Tensor, vectors: Vectors
) -> tuple[Tensor, Tensor]:
    """As `ops.two_level_chain.two_level_chain`, for any type of numbers."""
    return _Pairs.apply(windows, start, emitted, *vectors)


@dataclass(frozen=True, eq=False)
class _Text:
    """Windows in terms of pairs of blocks."""

    before: Tensor  # (P,) the first block of each pair
    after: Tensor  # (P,) the second
    pair: Tensor  # (B, T) of each position
    at: Tensor  # (B, T) the block of each word
    fresh: Tensor  # (B, T) bool

    @staticmethod
    def of(windows: Windows, num_blocks: int) -> _Text:
        before, at, fresh = windows.in_blocks()
        pairs, place = torch.unique(before * num_blocks + at, return_inverse=True)
        first, second = pairs // num_blocks, pairs % num_blocks
        return _Text(first, second, place.view(fresh.shape), at.view(fresh.shape), fresh)


@dataclass(frozen=True, eq=False)
class _Moves:
    """What lies between the blocks of a pair."""

    text: _Text
    leaving: Tensor  # (M, K, H)
    entering: Tensor  # (M, K, H)
    probs: Tensor  # (P, K, K) p(j | m, i)
    chosen: Tensor  # (P, K) log p(m | i)

    @staticmethod
    def of(text: _Text, vectors: Vectors) -> _Moves:
        leaving, entering = (vectors.by_block(x) for x in (vectors.leaving, vectors.entering))
        chosen = vectors.by_block(vectors.choice).transpose(1, 2)[text.before, text.after]
        probs = leaving.new_empty(*chosen.shape, leaving.shape[1])
        moves = _Moves(text, leaving, entering, probs, chosen)
        for some in moves.pieces():
            torch.softmax(moves.logits(some, out=probs[some]), 2, out=probs[some])
        return moves

    @property
    def pair(self) -> Tensor:
        """(B, T) of each position."""
        return self.text.pair

    def pieces(self) -> list[slice]:
        """All pairs, in pieces whose vectors and matrices fit into the cache."""
        _, size, width = self.leaving.shape
        cost = size * max(size, width)
        return memory.pieces(len(self.probs), cost, self.leaving.device, memory.TILE)

    def ends(self, some: slice) -> tuple[Tensor, Tensor]:
        """The vectors (S, K, H) that leave the first block of some pairs, and enter the second."""
        before, after = self.text.before[some], self.text.after[some]
        return self.leaving.index_select(0, before), self.entering.index_select(0, after)

    def logits(self, some: slice, out: Tensor | None = None) -> Tensor:
        """leaving_i · entering_j (S, K, K)."""
        first, second = self.ends(some)
        return torch.bmm(first, second.mT, out=out)

    @cached_property
    def logs(self) -> Tensor:
        """log p(j | m, i) (P, K, K); made only where a sum in probability space is too small."""
        found = torch.empty_like(self.probs)
        for some in self.pieces():
            torch.log_softmax(self.logits(some), 2, out=found[some])
        return found

    def ahead(self, log_alpha: Tensor, t: int) -> Tensor:
        """log Σ_i exp(log_alpha_i) p(m | i) p(j | m, i) (B, K) into position t."""
        pair, (probs, chosen) = self.pair[:, t], self._at(t)
        vector = log_alpha + chosen
        return log_product(
            vector,
            lambda weights: torch.bmm(weights.unsqueeze(1), probs).squeeze(1),
            lambda rows, columns: vector[rows] + self.logs[pair[rows], :, columns],
            lambda: (vector.amax(1, keepdim=True) > -torch.inf).expand_as(vector),
        )

    def back(self, log_beta: Tensor, t: int) -> Tensor:
        """log Σ_j p(m | i) p(j | m, i) exp(log_beta_j) (B, K) from position t."""
        pair, (probs, chosen) = self.pair[:, t], self._at(t)
        moved = log_product(
            log_beta,
            lambda weights: torch.bmm(probs, weights.unsqueeze(2)).squeeze(2),
            lambda rows, columns: log_beta[rows] + self.logs[pair[rows], columns],
            lambda: (log_beta.amax(1, keepdim=True) > -torch.inf).expand_as(log_beta),
        )
        return moved + chosen

    def _at(self, t: int) -> tuple[Tensor, Tensor]:
        """The matrices (B, K, K) and the choice (B, K) of position t."""
        if self.pair.numel() * self.chosen.shape[1] ** 2 > memory.TILE:
            pair = self.pair[:, t]
            return self.probs.index_select(0, pair), self.chosen.index_select(0, pair)
        probs, chosen = self._small
        return probs[t], chosen[t]

    @cached_property
    def _small(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Those of all positions, where they are few numbers."""
        batch, time = self.pair.shape
        every = self.pair.T.reshape(-1)
        probs = self.probs.index_select(0, every).view(time, batch, *self.probs.shape[1:])
        chosen = self.chosen.index_select(0, every).view(time, batch, -1)
        return probs.unbind(0), chosen.unbind(0)


class _Pairs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        windows: Windows,
        start: Tensor,
        emitted: Tensor,
        leaving: Tensor,
        entering: Tensor,
        choice: Tensor,
    ) -> tuple[Tensor, Tensor]:
        vectors = Vectors(leaving, entering, choice)
        text = _Text.of(windows, choice.shape[1])
        moves = _Moves.of(text, vectors)
        anew = start.view(choice.shape[1], -1)[text.at]  # (B, T, K)
        log_alpha, alphas, gains = windows.carried, [windows.carried], []
        for t in range(emitted.shape[1]):
            moved = moves.ahead(log_alpha, t)
            fresh = text.fresh[:, t].unsqueeze(1)
            drawn = log_alpha.logsumexp(1, keepdim=True) + anew[:, t]
            reached = torch.where(fresh, drawn, moved) + emitted[:, t]
            top = finite_or_zero(reached.amax(1, keepdim=True))
            inside = (t < windows.lengths).unsqueeze(1)
            log_alpha = torch.where(inside, reached - top, log_alpha)
            alphas.append(log_alpha)
            gains.append(torch.where(inside, top, 0.0))
        gained = torch.cat(gains, dim=1) if gains else emitted.new_zeros(len(emitted), 0)
        log_sum = gained.sum(1) + log_alpha.logsumexp(1)
        if any(ctx.needs_input_grad):
            ctx.moves, ctx.lengths = moves, windows.lengths
            ctx.save_for_backward(
                start, emitted, choice, torch.stack(alphas, dim=1), gained, log_sum
            )
        ctx.mark_non_differentiable(log_alpha)
        return log_sum, log_alpha

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
        start, emitted, choice, log_alpha, gained, log_sum = ctx.saved_tensors
        moves, text = ctx.moves, ctx.moves.text
        _, time, size = emitted.shape
        inside = torch.arange(time, device=grad.device) < ctx.lengths.unsqueeze(1)  # (B, T)
        log_beta = _sweep_back(start, emitted, text, moves, inside)  # (B, T + 1, K)
        weight = torch.where(log_sum > -torch.inf, grad, 0.0).unsqueeze(1) * inside
        joint = log_alpha + log_beta
        total = finite_or_zero(joint.logsumexp(2))
        used = (joint - total.unsqueeze(2)).exp()[:, 1:] * weight.unsqueeze(2)  # (B, T, K)
        of_start = torch.zeros_like(start).view(choice.shape[1], size)
        of_start.index_add_(0, text.at[text.fresh], used[text.fresh])
        here = ~text.fresh & (weight != 0)
        left = log_alpha[:, :-1] - (gained + total[:, 1:]).unsqueeze(2)
        left, right = left[here], (emitted + log_beta[:, 1:])[here]
        of_leaving, of_entering = torch.zeros_like(moves.leaving), torch.zeros_like(moves.entering)
        mass = torch.empty_like(moves.chosen)
        for some, counts in _expected_moves(moves, text.pair[here], left, right, weight[here]):
            mass[some] = counts.sum(2)
            of_logits = counts.addcmul_(moves.probs[some], mass[some].unsqueeze(2), value=-1)
            first, second = moves.ends(some)
            of_leaving.index_add_(0, text.before[some], torch.bmm(of_logits, second))
            of_entering.index_add_(0, text.after[some], torch.bmm(of_logits.mT, first))
        of_choice = torch.zeros_like(choice)
        by_block = of_choice.view(choice.shape[1], size, -1)
        by_block.transpose(1, 2)[text.before, text.after] = mass
        of_vectors = of_leaving.flatten(0, 1), of_entering.flatten(0, 1)
        return None, of_start.view(-1), used, *of_vectors, of_choice


def _sweep_back(
    start: Tensor, emitted: Tensor, text: _Text, moves: _Moves, inside: Tensor
) -> Tensor:
    """log p(words after t | state) (B, T + 1, K) up to a factor per position; position 0 is the
    state that was carried in."""
    batch, time, size = emitted.shape
    anew = start.view(-1, size)[text.at]
    log_beta = torch.zeros_like(emitted[:, 0]) if time else emitted.new_zeros(batch, size)
    betas = [log_beta]
    for t in reversed(range(time)):
        target = emitted[:, t] + log_beta
        moved = moves.back(target, t)
        drawn = (anew[:, t] + target).logsumexp(1, keepdim=True)
        moved = torch.where(text.fresh[:, t].unsqueeze(1), drawn, moved)
        moved = moved - finite_or_zero(moved.amax(1, keepdim=True))
        log_beta = torch.where(inside[:, t].unsqueeze(1), moved, 0.0)
        betas.append(log_beta)
    return torch.stack(betas[::-1], dim=1)


def _expected_moves(
    moves: _Moves, pair: Tensor, left: Tensor, right: Tensor, weight: Tensor
) -> Iterator[tuple[slice, Tensor]]:
    """Σ weight_n exp(left_i + log p(m | i) + log p(j | m, i) + right_j) (S, K, K) over positions,
    for some pairs after the other.

    left and right (N, K). Where a factor alone would be too large for the type, the position is
    summed in log space.
    """
    left = left + moves.chosen.index_select(0, pair)
    scale = finite_or_zero(left.amax(1, keepdim=True))
    left, right = left - scale, right + scale
    extreme = right.amax(1) > LARGEST_LOG
    weights = left.exp().mul_(torch.where(extreme, 0.0, weight).unsqueeze(1))
    targets = right.masked_fill(extreme.unsqueeze(1), -torch.inf).exp_()
    order = torch.argsort(pair)
    of_order, size = pair[order], left.shape[1]
    for some in moves.pieces():
        ends = torch.tensor([some.start, some.stop], device=pair.device)
        first, last = torch.searchsorted(of_order, ends).tolist()
        counts = moves.probs.new_zeros(some.stop - some.start, size, size)
        for part in memory.pieces(last - first, size * size, pair.device, memory.TILE):
            here = order[first:last][part]
            outer = weights[here].unsqueeze(2) * targets[here].unsqueeze(1)
            counts.index_add_(0, pair[here] - some.start, outer)
        counts.mul_(moves.probs[some])
        for n in order[first:last][extreme[order[first:last]]].tolist():
            logs = moves.logs[pair[n]] + left[n].unsqueeze(1) + right[n]
            counts[int(pair[n]) - some.start] += logs.exp_().mul_(weight[n])
        yield some, counts
