"""Expected counts: how often a model uses each of its probabilities in given text.

The gradient of log p(x) with respect to a log-probability is its expected count, so the backward
passes of the likelihood are all that is needed. Rows of the transition matrix are taken as free
numbers here: their normaliser is part of them and is held fixed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from bighmm.infer import counts_triton
from bighmm.infer.inputs import Carry, Sequences, batches_by_length
from bighmm.infer.joint import log_joint
from bighmm.model.emissions import EmissionTable
from bighmm.model.transitions import EVERY, Table

if TYPE_CHECKING:
    from bighmm.hmm import HMM


class Counts(NamedTuple):
    log_prob: Tensor  # (B,) log p(x_1 … x_T)
    start: Tensor  # (Z,) expected starts in each state
    transition: Tensor  # (Z, Z) expected moves from state to state
    emission: Tensor  # (V, K) expected emissions of each token by its k-th state


class Sums(NamedTuple):
    start: Tensor  # (Z,)
    transition: Tensor  # (Z, Z)
    emission: Tensor  # (V, K)


class _LogProbs(Table):
    """Transition log-probabilities, normalised already."""

    @property
    def norm(self) -> Tensor:
        return self.table.new_zeros(len(self.table))


def expected_counts(hmm: HMM, sequences: Sequences, cost_per_position: int) -> Counts:
    """Summed over the rows; a row of probability zero adds nothing."""
    counting = Counting(hmm)
    log_prob = hmm.start.new_zeros(len(sequences.ids))
    for rows in batches_by_length(sequences.lengths, cost_per_position):
        log_prob[rows], _ = counting.add(sequences.rows(rows), Carry.at_start(hmm, len(rows)))
    return Counts(log_prob, *counting.sums)


class Counting:
    """The counts of one model, expected or known, summed over all the windows that are added."""

    def __init__(self, hmm: HMM, impl: str = "auto") -> None:
        """impl: as in `kernels`, for dense models that fit those of `counts_triton`."""
        with torch.no_grad():
            moves = hmm.transitions.log_probs(EVERY)
        self.tables = Sums(*(t.detach().requires_grad_() for t in (hmm.start, moves, hmm.emission)))
        self.hmm = dataclasses.replace(
            hmm,
            start=self.tables.start,
            transitions=_LogProbs(self.tables.transition),
            emissions=EmissionTable(self.tables.emission),
        )
        self.kernels = counts_triton.fits(hmm, impl)
        self.sums = Sums(*map(torch.zeros_like, self.tables))

    def add(self, window: Sequences, carry: Carry) -> tuple[Tensor, Carry]:
        """log p(window | what came before) (B,), and the state after it."""
        found = None
        if self.kernels:
            found = counts_triton.count(self.hmm, self.tables, window, carry)
        log_prob, carry, counts = found or self._count(window, carry)
        self._add(counts)
        return log_prob, carry

    def add_known(self, window: Sequences, states: Tensor, before: Tensor) -> Tensor:
        """The terms (B, T) of log p(window, states), as `log_joint` has them: states are known."""
        with torch.enable_grad():
            terms = log_joint(self.hmm, window, states, before)
        self._add(torch.autograd.grad(terms.sum(), self.tables, allow_unused=True))
        return terms.detach()

    def _add(self, counts: Sequence[Tensor | None]) -> None:
        for total, count in zip(self.sums, counts, strict=True):
            if count is not None:
                total += count

    def _count(
        self, window: Sequences, carry: Carry
    ) -> tuple[Tensor, Carry, tuple[Tensor | None, ...]]:
        with torch.enable_grad():
            log_prob, carry = self.hmm.advance(window, carry)
        counts = torch.autograd.grad(log_prob.sum(), self.tables, allow_unused=True)
        return log_prob.detach(), carry, counts
