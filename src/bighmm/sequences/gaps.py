"""Symbols that are missing, or that fitting did not see, as two more symbols of a dense model.

What is missing says nothing: every state emits it with probability 1, so that the states are summed
over and its expected counts are left out. The probabilities of a state then add up to more than
one, which no question about given sequences minds. An unseen symbol says nothing of the state
either, but it has a probability, which the others give up a share of theirs for.
"""

from __future__ import annotations

import dataclasses
import math

import torch
from torch import Tensor

from bighmm.hmm import HMM
from bighmm.infer.counts import Sums, check_table
from bighmm.infer.sequences import Carry
from bighmm.model.emissions import EmissionTable
from bighmm.model.model import Model
from bighmm.model.params import Parameterisation
from bighmm.model.support import Dense, Support

NEVER = math.log(1e-200)  # less than this has a symbol that was not fitted


def with_gaps(model: Model, unseen: float = 0.0) -> Model:
    """The model with the symbols V, which is missing, and V + 1, which was not seen.

    unseen: the share of those that were not seen, from 0 up to below 1.

    Raises ValueError where a table over all states would be too large.
    """
    table = _whole_table(model)
    more = table.new_zeros(2, model.num_states)
    more[1] = math.log(unseen) if unseen else -torch.inf
    return _dense(model, torch.cat([table + math.log1p(-unseen), more]))


def after_gaps(model: Model, gapped: HMM, ids: Tensor) -> tuple[HMM, Carry]:
    """A dense form of the model, and what it knows after ids (T,) of its form `with_gaps`.

    After a gap any state may be alive, also those that cannot emit the last symbol.
    """
    carry = gapped.carry_after(ids.unsqueeze(0))
    carry = dataclasses.replace(carry, tokens=torch.zeros_like(carry.tokens))  # any known one
    return HMM.of(_dense(model, _whole_table(model))), carry


def without_gaps(counts: Sums, support: Support) -> Sums:
    """The counts of `with_gaps` as the model itself has them."""
    known = counts.emission[: support.vocabulary_size]
    states = support.states(torch.arange(len(known)))  # (V, K)
    cells = known.gather(1, states.clamp(min=0)).masked_fill(states < 0, 0.0)
    return counts._replace(emission=cells)


def unfitted(hmm: HMM) -> Tensor:
    """(V,) bool: the symbols that no state emits, as fitting did not see them."""
    return hmm.emission.amax(1) < NEVER


class WithGaps(Parameterisation):
    """Parameters whose model is `with_gaps`; training changes them as it would alone."""

    def __init__(self, inner: Parameterisation) -> None:
        super().__init__()
        self.inner, self.end = inner, None
        self.support = Dense(inner.support.num_states, inner.support.vocabulary_size + 2)

    def forward(self, kept: Tensor | None = None) -> Model:
        assert kept is None, "there is no state dropout here"
        return with_gaps(self.inner())


def _whole_table(model: Model) -> Tensor:
    """log p(symbol | state) (V, Z) of all states; ValueError where it would be too large."""
    check_table(model, model.num_states * max(model.num_states, model.vocabulary_size))
    return model.support.emission_rows(model.emission, slice(None)).T.contiguous()


def _dense(model: Model, table: Tensor) -> Model:
    """The model with other emissions (V, Z), which any state may have."""
    support = Dense(model.num_states, len(table))
    return dataclasses.replace(model, emissions=EmissionTable(table), support=support, end=None)
