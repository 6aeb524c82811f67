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
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import NamedTuple

import torch
from torch import Tensor

from bighmm.data.batches import Batch, Batches, Labelled
from bighmm.hmm import HMM
from bighmm.infer.counts import Counting, Counts, Sums
from bighmm.infer.inputs import Carry, trusted
from bighmm.model.emissions import EmissionTable
from bighmm.model.params.scalar import Scalar
from bighmm.model.support import Dense, Support
from bighmm.model.transitions import EVERY, Table
from bighmm.train.objective import (
    State,
    Trainable,
    Window,
    labelled_beginning,
    labelled_window,
)
from bighmm.train.recipe import TrainingSettings
from bighmm.train.schedule import Schedule
from bighmm.train.steps import Done, Steps, on_device, restore_tensors, saved_tensors


class Fitted(NamedTuple):
    hmm: HMM  # after the last iteration
    log_probs: list[float]  # log p of all rows before each iteration


def baum_welch(
    hmm: HMM,
    tokens: Tensor,
    lengths: Tensor | None = None,
    *,
    iterations: int = 10,
    step_size: float = 1.0,
    smoothing: float = 0.0,
) -> Fitted:
    """Fit an HMM to token ids (B, T), each row up to its own length, by iterations over all rows.

    The likelihood never falls if `smoothing` is 0. Raises ValueError for settings outside their
    range, and if a row has probability zero: nothing can be learned from it.
    """
    if iterations < 1 or not 0 < step_size <= 1 or not 0 <= smoothing < math.inf:
        raise ValueError(
            f"iterations must be at least 1, step_size above 0 and at most 1, and smoothing finite "
            f"and not below 0, not {iterations}, {step_size} and {smoothing}"
        )
    log_probs = []
    for _ in range(iterations):
        counts = hmm.expected_counts(tokens, lengths)
        total = float(counts.log_prob.double().sum())
        if not math.isfinite(total):
            row = int((~counts.log_prob.isfinite()).nonzero()[0])
            raise ValueError(f"row {row} of tokens has probability zero in this HMM")
        log_probs.append(total)
        hmm = improved(hmm, counts, step_size, smoothing)
    return Fitted(hmm, log_probs)


@torch.no_grad()
def improved(
    hmm: HMM, counts: Counts | Sums, step_size: float | Tensor = 1.0, smoothing: float = 0.0
) -> HMM:
    """The same HMM with tables of new probabilities, from its expected counts."""

    def mixed(old: Tensor, counts: Tensor, sums: Callable[[Tensor], Tensor]) -> Tensor:
        """`sums` adds up what belongs to one distribution, for each of its cells."""
        possible, smallest = old > -torch.inf, torch.finfo(old.dtype).tiny
        used = sums(counts) > smallest
        counts = torch.where(possible, counts + smoothing, 0.0)
        probs = torch.lerp(old.exp(), counts / sums(counts), step_size)
        return torch.where(possible & used, probs.clamp(min=smallest).log(), old)

    moves = hmm.transitions.log_probs(EVERY)
    start = mixed(hmm.start, counts.start, lambda n: n.sum())
    moves = mixed(moves, counts.transition, lambda n: n.sum(1, keepdim=True))
    emission = mixed(hmm.emission, counts.emission, lambda n: _sums_by_state(hmm.support, n))
    emissions = EmissionTable(emission)
    return dataclasses.replace(hmm, start=start, transitions=Table(moves), emissions=emissions)


def _sums_by_state(support: Support, cells: Tensor) -> Tensor:
    """For each of the cells (V, K), the sum over all cells of its state."""
    if isinstance(support, Dense):
        return cells.sum(0)
    tokens = torch.arange(support.vocabulary_size, device=cells.device)
    states = support.states(tokens).clamp(min=0).view(-1)  # where there is none, a cell holds 0
    sums = cells.new_zeros(support.num_states).index_add_(0, states, cells.reshape(-1))
    return sums.index_select(0, states).view(cells.shape)


def make_baum_welch_steps(
    lm: Trainable, batches: Batches, settings: TrainingSettings, schedule: Schedule, capture: bool
) -> Steps:
    """Captured on a GPU where that can be done: a batch at a time, and every word of any state."""
    if capture and not settings.full_batch and isinstance(lm.params.support, Dense):
        from bighmm.train.graph import GraphSteps

        update = BaumWelchUpdate(lm, settings, schedule, isinstance(batches, Labelled))
        return GraphSteps(lm, batches, settings.seed, update)
    return BaumWelchSteps(lm, batches, settings, schedule)


class BaumWelchUpdate:
    """One step for a captured graph; the host cannot look whether its numbers are finite."""

    optimizer = None

    def __init__(
        self, lm: Trainable, settings: TrainingSettings, schedule: Schedule, labelled: bool
    ) -> None:
        self.lm, self.params = lm, _tables_of(lm)
        self.settings, self.schedule, self.labelled = settings, schedule, labelled
        self.precision = nullcontext

    def begin(self, rows: int) -> State:
        if self.labelled:
            return labelled_beginning(rows, self.lm.device)
        with torch.no_grad():
            return vars(Carry.at_start(self.params(), rows))

    def size(self, step: int) -> float:
        return _step_size(self.settings, self.schedule, step)

    def step(
        self, window: Window, carried: State, key: Tensor, size: Tensor
    ) -> tuple[Tensor, Tensor, State]:
        with torch.no_grad():
            hmm = self.params()
        counting = Counting(hmm)
        found, carried = _add(counting, window, carried)
        norm = torch.nn.utils.get_total_norm(counting.sums)
        _become(self.params, improved(hmm, counting.sums, size, self.settings.smoothing))
        return -found.sum() / window.lengths.sum(), norm, carried


class BaumWelchSteps:
    """Steps of a training run: the counts of a batch, or of the whole text, then new tables.

    Where the batches have labels the counts are those of the labels: states are known.

    α is `step_size` times the learning rate's share of its highest value, so that it follows the
    schedule. With `full_batch` a step reads the batches of the first epoch, the same every time.
    """

    at_once = 1

    def __init__(
        self, lm: Trainable, batches: Batches, settings: TrainingSettings, schedule: Schedule
    ) -> None:
        self.lm, self.params = lm, _tables_of(lm)
        self.batches, self.settings, self.schedule = batches, settings, schedule
        self.carried: State | None = None

    def run(self, step: int, count: int) -> list[Done]:
        return [self._one(step + i) for i in range(count)]

    def _one(self, step: int) -> Done:
        with torch.no_grad():
            hmm = self.params()
        counting, carried = Counting(hmm), self.carried
        log_prob = torch.zeros((), dtype=torch.float64, device=self.lm.device)
        tokens = 0
        for batch in self._batches(step):
            window = on_device(batch, self.lm.device)
            found, carried = _add(counting, window, carried if batch.continues else None)
            log_prob += found.sum(dtype=torch.float64)
            tokens += int(batch.lengths.sum())
        step_size = _step_size(self.settings, self.schedule, step)
        size = torch.nn.utils.get_total_norm(counting.sums)
        nats, norm = torch.stack([-log_prob, size.double()]).tolist()  # the host waits here
        done = Done(nats / tokens, norm, step_size, tokens)
        if math.isfinite(done.loss) and math.isfinite(done.norm):
            _become(self.params, improved(hmm, counting.sums, step_size, self.settings.smoothing))
            self.lm.clear_cache()
            self.carried = carried
        return done

    def tensors(self) -> dict[str, Tensor]:
        return saved_tensors(self.lm, None, self.carried)

    def restore(self, tensors: dict[str, Tensor]) -> None:
        self.carried = restore_tensors(self.lm, None, tensors)

    def release(self) -> None: ...

    def _batches(self, step: int) -> Iterator[Batch]:
        if not self.settings.full_batch:
            return iter([self.batches.batch(step)])
        return (self.batches.batch(i) for i in range(self.batches.steps_per_epoch))


def _tables_of(lm: Trainable) -> Scalar:
    assert isinstance(lm.params, Scalar), "as the recipe's check says"
    return lm.params


def _step_size(settings: TrainingSettings, schedule: Schedule, step: int) -> float:
    return settings.step_size * schedule.rate(step) / settings.lr


@torch.no_grad()
def _become(params: Scalar, hmm: HMM) -> None:
    """Log-probabilities are logits; a cell of the support that is no state's keeps its own."""
    for logits, found in (
        (params.start, hmm.start),
        (params.transition, hmm.transitions.logits(slice(0, hmm.num_states))),
        (params.emission, hmm.emission),
    ):
        logits.copy_(torch.where(found > -torch.inf, found, logits))


def _add(counting: Counting, window: Window, carried: State | None) -> tuple[Tensor, State]:
    """log p of each row, or of each word and its state where it is known; what is carried on."""
    hmm = counting.hmm
    if window.states is not None:
        carried = carried or labelled_beginning(len(window.ids), window.ids.device)
        sequences, states, after = labelled_window(hmm, window, carried)
        return counting.add_known(sequences, states, carried["state"]), after
    carry = Carry.at_start(hmm, len(window.ids)) if carried is None else Carry(**carried)
    of_rows, carry = counting.add(trusted(hmm, window.ids, window.lengths), carry)
    return of_rows, vars(carry)
