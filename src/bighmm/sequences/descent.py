"""AdamW on any parameters: an update of `bighmm.train`, run step by step."""

from __future__ import annotations

import math

import numpy as np

from bighmm.data.batches import Batch
from bighmm.hmm import HMM
from bighmm.sequences.beginnings import finished, new_parameters
from bighmm.sequences.gaps import WithGaps, with_gaps
from bighmm.sequences.progress import Progress
from bighmm.sequences.rows import Rows
from bighmm.sequences.settings import Settings
from bighmm.train.losses import Likelihood
from bighmm.train.recipe import TrainingSettings
from bighmm.train.runner import EagerRunner
from bighmm.train.schedule import make_schedule
from bighmm.train.update import Descent

LARGEST_GRADIENT = 5.0


def fit_parameters(settings: Settings, rows: Rows, seed: int, progress: Progress) -> HMM:
    """The HMM after passes over all sequences in batches that are drawn anew.

    While the parameters change the history has the sum over a pass of what each batch had.
    """
    if not 0 < settings.lr < math.inf:
        raise ValueError(f"lr must be finite and above 0, not {settings.lr}")
    module = new_parameters(settings, rows, seed)
    trained = WithGaps(module) if rows.gapped else module
    training = TrainingSettings(
        lr=float(settings.lr), clip=LARGEST_GRADIENT, state_dropout=0.0, schedule="constant"
    )
    update = Descent(trained, Likelihood(trained), training, make_schedule(training, 1))
    batches = Shuffled(rows, settings.batch_size, seed)
    runner = EagerRunner(update, batches, seed)
    for iteration in range(settings.iterations):
        first = iteration * batches.steps_per_epoch
        results = runner.run(first, batches.steps_per_epoch)
        if not all(result.finite for result in results):
            raise ValueError(
                f"the likelihood is no longer a finite number; use a smaller lr than {settings.lr}"
            )
        progress.add(-sum(result.loss * result.tokens for result in results))
        if progress.converged:
            break
    hmm = finished(module)
    asked = HMM.of(with_gaps(hmm)) if rows.gapped else hmm
    after = sum(float(asked.log_prob(ids, lengths).sum()) for _, ids, lengths in rows.batches())
    if not math.isfinite(after):
        raise ValueError(f"the likelihood is no longer finite; use a smaller lr than {settings.lr}")
    progress.add(after, compared=False)
    return hmm


class Shuffled:
    """Batches of sequences that are not empty, drawn anew in every epoch."""

    shape = None

    def __init__(self, rows: Rows, size: int, seed: int) -> None:
        self.rows, self.size = rows, size
        self.filled = np.array([number for number, row in enumerate(rows.rows) if len(row)])
        self.steps_per_epoch = -(-len(self.filled) // size)
        self.tokens_per_step = rows.positions / self.steps_per_epoch
        self._generator = np.random.default_rng(seed)
        self._orders: list[np.ndarray] = []  # of the epochs so far

    def batch(self, step: int) -> Batch:
        epoch, place = divmod(step, self.steps_per_epoch)
        while len(self._orders) <= epoch:
            self._orders.append(self._generator.permutation(self.filled))
        chosen = self._orders[epoch][place * self.size : (place + 1) * self.size]
        ids, lengths = self.rows.padded(chosen.tolist())
        return Batch(ids.numpy(), lengths.numpy(), continues=False)
