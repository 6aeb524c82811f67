"""Expected counts: how often a model uses each of its probabilities in given text.

The gradient of log p(x) with respect to a log-probability is its expected count, so the backward
passes of the likelihood are all that is needed. Rows of the transition matrix are taken as free
numbers here: their normaliser is part of them and is held fixed.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from bighmm.emissions import EmissionTable
from bighmm.infer.inputs import Carry, Sequences, batches_by_length
from bighmm.transitions import Table

if TYPE_CHECKING:
    from bighmm.hmm import HMM


class Counts(NamedTuple):
    log_prob: Tensor  # (B,) log p(x_1 … x_T)
    start: Tensor  # (Z,) expected starts in each state
    transition: Tensor  # (Z, Z) expected moves from state to state
    emission: Tensor  # (V, K) expected emissions of each token by its k-th state


class _LogProbs(Table):
    """Transition log-probabilities, normalised already."""

    @property
    def norm(self) -> Tensor:
        return self.table.new_zeros(len(self.table))


def expected_counts(hmm: HMM, sequences: Sequences, cost_per_position: int) -> Counts:
    """Summed over the rows; a row of probability zero adds nothing."""
    every = slice(0, hmm.num_states)
    with torch.no_grad():
        moves = hmm.transitions.logits(every) - hmm.transitions.norm.unsqueeze(1)
    leaves = [t.detach().clone().requires_grad_() for t in (hmm.start, moves, hmm.emission)]
    start, moves, emission = leaves
    free = dataclasses.replace(
        hmm, start=start, transitions=_LogProbs(moves), emissions=EmissionTable(emission)
    )
    totals = [torch.zeros_like(t) for t in leaves]
    log_prob = hmm.start.new_zeros(len(sequences.ids))
    for rows in batches_by_length(sequences.lengths, cost_per_position):
        with torch.enable_grad():
            part, _ = free.advance(sequences.rows(rows), Carry.at_start(free, len(rows)))
            grads = torch.autograd.grad(part.sum(), leaves, allow_unused=True)
        log_prob[rows] = part.detach()
        for total, grad in zip(totals, grads, strict=True):
            if grad is not None:
                total += grad
    return Counts(log_prob, *totals)
