"""Baum-Welch: probabilities from expected counts, with a step size for batches of a large text.

One step counts how often the model is expected to use each of its probabilities in the text, and
takes the shares of these counts as new probabilities, or goes part of the way to them:

    θ ← α · (n + smoothing) / Σ (n + smoothing) + (1 − α) · θ

**When the likelihood cannot fall.** Where the counts n are those of the whole text, no step lowers
its likelihood, for any α from 0 to 1. Counts give the bound log p(θ') − log p(θ) ≥ Q(θ') − Q(θ)
with Q(θ) = Σ n log θ. The likelihood is not concave in θ but Q is, and the shares of the counts
maximise it: from θ to there Q can only rise, so every point on the way is at least as good as θ.
With smoothing the same holds for log p + smoothing · Σ log θ, a prior. It does not hold for the
counts of a batch, which know nothing of the rest of the text, nor for a text in windows between
which a state is carried, whose counts do not see what follows their window.

**What is zero.** A probability that is zero stays so, smoothing or not: that is how a model says
what is impossible. Any other stays above zero, if only by the smallest number of its type, so that
no word becomes impossible because a batch does not have it. A state that the text does not use at
all keeps what it has.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bighmm.base import processes
from bighmm.data.batches import Batch
from bighmm.hmm import HMM
from bighmm.infer import loops
from bighmm.infer.counts import Counting, Counts, Sums, expected_counts
from bighmm.infer.sequences import Carry, Sequences, unchecked, validate
from bighmm.model.emissions import EmissionTable
from bighmm.model.model import Model
from bighmm.model.params import Parameterisation
from bighmm.model.transitions import Table
from bighmm.train.losses import State, Window, labelled_state, labelled_window
from bighmm.train.recipe import TrainingSettings
from bighmm.train.schedule import Schedule


class Fitted(NamedTuple):
    hmm: HMM  # after the last iteration
    log_probs: list[float]  # log p of all rows before each iteration


def baum_welch(
    hmm: HMM,
    tokens: Any,
    lengths: Any = None,
    *,
    iterations: int = 10,
    step_size: float = 1.0,
    smoothing: float = 0.0,
) -> Fitted:
    """Fit an HMM to token ids (B, T), each row up to its own length, by iterations over all rows.

    The likelihood never falls if `smoothing` is 0. Raises ValueError for settings outside their
    range, and if a row has probability zero: nothing can be learned from it.
    """
    if iterations < 1:
        raise ValueError(f"iterations must be at least 1, not {iterations}")
    if not 0 < step_size <= 1:
        raise ValueError(f"step_size must be above 0 and at most 1, not {step_size}")
    if not 0 <= smoothing < math.inf:
        raise ValueError(f"smoothing must be finite and not below 0, not {smoothing}")
    sequences, log_probs = validate(hmm, tokens, lengths), []
    for _ in range(iterations):
        total, hmm = _iterate(hmm, sequences, step_size, smoothing)
        log_probs.append(total)
    return Fitted(hmm, log_probs)


def _iterate(
    hmm: HMM, sequences: Sequences, step_size: float, smoothing: float
) -> tuple[float, HMM]:
    """log p of all rows, and the HMM after one iteration."""
    found = loops.refit(hmm, sequences, step_size, (smoothing, smoothing, smoothing))
    if found is not None and math.isfinite(found[0]):
        total, (start, moves, emission) = found
        kept = (hmm.support, hmm.end, hmm.reset)
        return total, HMM(start, Table(moves), EmissionTable(emission), *kept)
    counts = expected_counts(hmm, sequences)
    total = float(counts.log_prob.double().sum())
    if not math.isfinite(total):
        row = int((~counts.log_prob.isfinite()).nonzero()[0])
        raise ValueError(f"row {row} of tokens has probability zero in this HMM")
    return total, HMM.of(improved(hmm, counts, step_size, smoothing))


class Pseudocounts(NamedTuple):
    """What is added to expected counts, a number for a whole table or one for each of its cells.

    Below 0 it takes away, and what would be less than none is none.
    """

    start: float | Tensor  # (Z,)
    transition: float | Tensor  # (Z, Z)
    emission: float | Tensor  # (V, K)


@torch.no_grad()
def improved(
    model: Model,
    counts: Counts | Sums,
    step_size: float | Tensor = 1.0,
    smoothing: float | Pseudocounts = 0.0,
) -> Model:
    """The same model with tables of new probabilities, from its expected counts."""
    added = smoothing if isinstance(smoothing, Pseudocounts) else Pseudocounts(*[smoothing] * 3)
    moves = model.transitions.log_probs()
    start = _mixed(model.start, counts.start, lambda n: n.sum(), step_size, added.start)
    emission = _mixed(
        *(model.emission, counts.emission, model.support.sum_by_state),
        *(step_size, added.emission),
    )
    moves = _mixed(
        *(moves, counts.transition, lambda n: n.sum(1, keepdim=True)),
        *(step_size, added.transition),
    )
    emissions = EmissionTable(emission)
    return dataclasses.replace(model, start=start, transitions=Table(moves), emissions=emissions)


def _mixed(
    old: Tensor,
    counts: Tensor,
    sums: Callable[[Tensor], Tensor],
    step_size: float | Tensor,
    added: float | Tensor,
) -> Tensor:
    """New log-probabilities; `sums` adds up what belongs to one distribution, for each cell."""
    possible, smallest = old > -torch.inf, torch.finfo(old.dtype).tiny
    used = sums(counts) > smallest
    counts = torch.where(possible, (counts + added).clamp(min=0.0), 0.0)
    total = sums(counts)
    probs = torch.lerp(old.exp(), counts / total, step_size)
    used = used & (total > smallest)
    return torch.where(possible & used, probs.clamp(min=smallest).log(), old)


class ExpectationMaximisation:
    """Baum-Welch steps on a parameterisation of tables; an `Update`.

    Where the batches have labels (`labelled`) the counts are those of the labels. The step size α
    is `step_size` times the learning rate's share of its highest value, so that it follows the
    schedule. Raises ValueError for parameters that are no tables.
    """

    optimizer = None
    average = None

    def __init__(
        self,
        params: Parameterisation,
        settings: TrainingSettings,
        schedule: Schedule,
        labelled: bool = False,
    ) -> None:
        tables = params.tables()
        if tables is None:
            raise ValueError("Baum-Welch sets tables of probabilities, and this model has none")
        self.params, self.tables, self.labelled = params, tables, labelled
        self.settings, self.schedule = settings, schedule
        self.counting: Counting | None = None

    def initial_state(self, rows: int, every: int | None = None) -> State:
        if self.labelled:
            return labelled_state(rows, self.tables.start.device)
        with torch.no_grad():
            return vars(Carry.at_start(self.params(), rows))

    def size(self, step: int) -> float:
        return self.settings.step_size * self.schedule.rate(step) / self.settings.lr

    def prepare(self, batches: Sequence[Batch]) -> None:
        """All steps have the same shapes."""

    def begin(self) -> None:
        with torch.no_grad():
            self.model = self.params()
        self.counting = Counting(self.model)

    def accumulate(self, window: Window, state: State, key: Tensor) -> tuple[Tensor, State]:
        assert self.counting is not None, "begin was called"
        model = self.counting.model
        if self.labelled:
            sequences, states, after = labelled_window(model, window, state)
            log_probs = self.counting.add_known(sequences, states, state["state"])
        else:
            sequences = unchecked(model, window.ids, window.lengths)
            log_probs, carry = self.counting.add(sequences, Carry(**state))
            after = vars(carry)
        return -log_probs.sum() / window.every[1].sum(), after

    def norm(self) -> Tensor:
        assert self.counting is not None, "begin was called"
        processes.current().sum_(self.counting.sums)
        return torch.nn.utils.get_total_norm(self.counting.sums)

    @torch.no_grad()
    def apply(self, size: float | Tensor) -> None:
        assert self.counting is not None, "begin was called"
        found = improved(self.model, self.counting.sums, size, self.settings.smoothing)
        self.params.set_tables(found.start, found.transitions.log_probs(), found.emission)

    def precision(self) -> AbstractContextManager[None]:
        return nullcontext()
