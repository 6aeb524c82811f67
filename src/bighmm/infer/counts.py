"""Expected counts: how often a model uses each of its probabilities in given text.

The gradient of log p(x) with respect to a log-probability is its expected count, so the backward
passes of the likelihood are all that is needed. Rows of the transition matrix are taken as free
numbers here: their normaliser is part of them and is held fixed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from bighmm.infer import dense, loops
from bighmm.infer.filter import advance
from bighmm.infer.joint import log_joint
from bighmm.infer.sequences import Carry, Sequences, batches_by_length, cost_per_position
from bighmm.model.emissions import EmissionTable
from bighmm.model.model import Model
from bighmm.model.transitions import Table
from bighmm.ops import memory
from bighmm.ops.dense_chain import SMALLEST_PROB, dense_chain
from bighmm.ops.dense_chain.passes import TableEmissions, TableTransitions
from bighmm.ops.impl import use_triton
from bighmm.ops.matmul import being_captured
from bighmm.ops.table_chain import compiled


class Counts(NamedTuple):
    log_prob: Tensor  # (B,) log p(x_1 … x_T)
    start: Tensor  # (Z,) expected starts in each state
    transition: Tensor  # (Z, Z) expected moves from state to state
    emission: Tensor  # (V, K) expected emissions of each token by its k-th state


class Sums(NamedTuple):
    start: Tensor  # (Z,)
    transition: Tensor  # (Z, Z)
    emission: Tensor  # (V, K)


def expected_counts(model: Model, sequences: Sequences, impl: str = "auto") -> Counts:
    """Summed over the rows; a row of probability zero adds nothing."""
    check_table(model, model.num_states**2)
    fits = memory.at_once(sequences.ids.shape[1] * cost_per_position(model), model.start.device)
    looped = loops.prepare(model, sequences, impl) if len(sequences.ids) <= fits else None
    if looped is not None:
        found = compiled().count(looped.rows, looped.tables)
        return Counts(found.log_prob, found.start, found.transition, looped.whole(found.emission))
    counting = Counting(model, impl)
    log_prob = model.start.new_zeros(len(sequences.ids))
    for rows in batches_by_length(sequences.lengths, cost_per_position(model)):
        log_prob[rows], _ = counting.add(sequences.rows(rows), Carry.at_start(model, len(rows)))
    return Counts(log_prob, *counting.sums)


def check_table(model: Model, numbers: int) -> None:
    """Raises ValueError if a table of so many numbers is too large an answer."""
    most = memory.limit(memory.ANSWER, model.start.device)
    if numbers > most:
        raise ValueError(
            f"a table of {model.num_states:,} states would have {numbers:,} numbers, more than the "
            f"{most:,} that an answer may have; transitions.log_probs gives some rows of it"
        )


class Counting:
    """The counts of one model, expected or known, summed over all the windows that are added."""

    def __init__(self, model: Model, impl: str = "auto") -> None:
        """impl: as in `ops`, for models that `ops.dense_chain` or `ops.table_chain` can do."""
        check_table(model, model.num_states**2)
        with torch.no_grad():
            moves = model.transitions.log_probs()
        self.tables = Sums(
            *(t.detach().requires_grad_() for t in (model.start, moves, model.emission))
        )
        self.model = dataclasses.replace(
            model,
            start=self.tables.start,
            transitions=Table(self.tables.transition, normalised=True),
            emissions=EmissionTable(self.tables.emission),
        )
        self.impl = impl
        self.with_kernels = use_triton(model.start, impl) and dense.kernel_fits(model)
        self.sums = Sums(*map(torch.zeros_like, self.tables))

    def add(self, window: Sequences, carry: Carry) -> tuple[Tensor, Carry]:
        """log p(window | what came before) (B,), and the state after it."""
        if self.with_kernels:
            found = self._count_with_kernels(window, carry)
        else:
            found = self._count_in_loops(window, carry)
        log_prob, carry, counts = found or self._count(window, carry)
        self._add(counts)
        return log_prob, carry

    def add_known(self, window: Sequences, states: Tensor, before: Tensor) -> Tensor:
        """The terms (B, T) of log p(window, states), as `log_joint` has them: states are known."""
        with torch.enable_grad():
            terms = log_joint(self.model, window, states, before)
        self._add(torch.autograd.grad(terms.sum(), self.tables, allow_unused=True))
        return terms.detach()

    def _add(self, counts: Sequence[Tensor | None]) -> None:
        for total, count in zip(self.sums, counts, strict=True):
            if count is not None:
                total += count

    def _count(
        self, window: Sequences, carry: Carry
    ) -> tuple[Tensor, Carry, Sequence[Tensor | None]]:
        with torch.enable_grad():
            log_prob, carry = advance(self.model, window, carry)
        counts = torch.autograd.grad(log_prob.sum(), self.tables, allow_unused=True)
        return log_prob.detach(), carry, counts

    @torch.no_grad()
    def _count_in_loops(
        self, window: Sequences, carry: Carry
    ) -> tuple[Tensor, Carry, Sequence[Tensor | None]] | None:
        """None where the compiled loops cannot be used."""
        looped = loops.prepare(self.model, window, self.impl, carry)
        if looped is None:
            return None
        found = compiled().count(looped.rows, looped.tables, looped.carried, ends=True)
        after = carry.then(self.model, window, found.ended)
        counts = (found.start, found.transition, looped.whole(found.emission))
        return found.log_prob, after, counts

    def _count_with_kernels(
        self, window: Sequences, carry: Carry
    ) -> tuple[Tensor, Carry, Sequence[Tensor | None]] | None:
        """None where mass may have been lost, unless a graph is captured, which cannot ask."""
        if window.ids.numel() == 0:
            return None
        start, transition, emission = self.tables
        with torch.enable_grad():
            log_prob, log_alpha, relative = dense_chain(
                dense.windows_of(window, carry),
                start,
                (TableTransitions(normalised=True), (transition,)),
                (TableEmissions(), (emission,)),
            )
        counts = torch.autograd.grad(log_prob.sum(), self.tables)
        after = carry.then(self.model, window, log_alpha)
        if not being_captured(log_prob):
            least, *totals = torch.stack([relative.min(), *(n.sum() for n in counts)]).tolist()
            if least < SMALLEST_PROB or not all(map(math.isfinite, totals)):
                return None
        return log_prob.detach(), after, counts
