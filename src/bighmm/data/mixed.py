"""Batches of which some rows are from the training text and the others from a second one.

The second text has the same vocabulary; often a model that was trained on the first has written it.
Rows of the two are never exchanged, so each row of streams goes on in its own text.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bighmm.data.batches import Batch, Batches, make_batches
from bighmm.data.options import BatchKind


class Text(NamedTuple):
    """Token ids (N,), and offsets where documents begin and where the last one ends."""

    tokens: np.ndarray
    documents: np.ndarray


def mixed_batches(
    kind: BatchKind,
    real: Text,
    more: Text,
    *,
    end: int,
    batch: int,
    window: int,
    seed: int,
    share: float,
    mixed_epochs: float,
) -> Mixed:
    """Batches of both texts for `mixed_epochs`, and then of `real` alone.

    share: how many of the rows are from `more`, see `rows_of`.
    mixed_epochs: counted in steps of batches that would pass once over `real` alone.

    The other arguments are those of `make_batches`. Raises ValueError as it does, and as `rows_of`.
    """

    def batches(text: Text, rows: int) -> Batches:
        return make_batches(kind, *text, end=end, batch=rows, window=window, seed=seed)

    written = rows_of(batch, share)
    alone = batches(real, batch)
    parts = [batches(text, n) for text, n in ((real, batch - written), (more, written)) if n]
    return Mixed(alone, parts, round(mixed_epochs * alone.steps_per_epoch))


def rows_of(batch: int, share: float) -> int:
    """How many of the rows of a batch are from the second text: as near to the share as can be.

    Both texts have at least one row, unless the share is 1. Raises ValueError for a share that is
    not above 0 and at most 1, and for a batch of one row that is to be shared.
    """
    if not 0 < share <= 1:
        raise ValueError(f"share must be above 0 and at most 1, not {share}")
    if share == 1:
        return batch
    if batch < 2:
        raise ValueError(f"a batch of {batch} row cannot be shared by two texts; use a larger one")
    return min(max(round(batch * share), 1), batch - 1)


class Mixed:
    """Rows of all `parts` one below the other in the first `steps` steps, then batches of `alone`.

    An epoch has as many steps as one of `alone`. The parts begin again whenever they are over.
    """

    def __init__(self, alone: Batches, parts: list[Batches], steps: int) -> None:
        self.alone, self.parts, self.steps = alone, parts, steps
        self.steps_per_epoch, self.tokens_per_step = alone.steps_per_epoch, alone.tokens_per_step
        self.shape = alone.shape
        shapes = [part.shape for part in parts]
        if self.shape is not None:
            rows = sum(shape[0] for shape in shapes if shape is not None)
            self.shape = (max(rows, self.shape[0]), self.shape[1])

    def batch(self, step: int) -> Batch:
        if step >= self.steps:
            return self.alone.batch(step - self.steps)
        return _stacked([part.batch(step) for part in self.parts])


def _stacked(batches: list[Batch]) -> Batch:
    """The rows of all batches as one."""
    width = max(batch.ids.shape[1] for batch in batches)
    ids = [np.pad(b.ids, ((0, 0), (0, width - b.ids.shape[1]))) for b in batches]
    lengths = np.concatenate([batch.lengths for batch in batches])
    continues = np.concatenate([np.broadcast_to(b.continues, len(b.lengths)) for b in batches])
    same = bool(continues.all()) or not continues.any()
    return Batch(np.concatenate(ids), lengths, bool(continues[0]) if same else continues)
