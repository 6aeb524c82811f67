"""Baum-Welch on tables: all of them or some, with a prior for each, and in steps on batches."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from bighmm.hmm import HMM
from bighmm.infer.counts import Counting, Sums
from bighmm.infer.sequences import Carry, unchecked
from bighmm.sequences.gaps import with_gaps, without_gaps
from bighmm.sequences.progress import Progress
from bighmm.sequences.rows import Rows
from bighmm.sequences.settings import PRIORS, Settings, prior_of
from bighmm.train.expectation_maximisation import Pseudocounts, improved

FORGETTING = 0.6  # step number k of `partial_fit` goes (k + 1)^-FORGETTING of the way


def fit_tables(settings: Settings, rows: Rows, first: HMM, progress: Progress) -> HMM:
    """The HMM after iterations over all sequences, beginning with `first`.

    Raises ValueError for rows of probability zero.
    """
    hmm, priors = first, pseudocounts(settings, first)
    batches = [(ids, lengths) for _, ids, lengths in rows.batches(first.num_states)]
    while True:
        done = len(progress.history) == settings.iterations
        if done:  # counts would not be used
            total, sums = log_prob(hmm, batches, rows.gapped), None
        else:
            total, sums = expected(hmm, batches, rows.gapped)
        if not math.isfinite(total):
            _refuse_impossible(hmm, rows)
        progress.add(total)
        if sums is None or progress.converged:
            return hmm
        hmm = maximised(hmm, sums, priors, settings.params)


def step_on_batch(settings: Settings, rows: Rows, hmm: HMM, step: int) -> HMM:
    """The HMM after one step on some sequences, which goes a part of the way to their shares.

    The more steps there were, the smaller the part, so that what was seen before is kept.
    """
    batches = [(ids, lengths) for _, ids, lengths in rows.batches(hmm.num_states)]
    total, sums = expected(hmm, batches, rows.gapped)
    if not math.isfinite(total):
        _refuse_impossible(hmm, rows)
    size = (step + 2) ** -FORGETTING
    return maximised(hmm, sums, pseudocounts(settings, hmm), settings.params, size)


def log_prob(hmm: HMM, batches: list[tuple[Tensor, Tensor]], gapped: bool) -> float:
    """log p of all sequences."""
    asked = HMM.of(with_gaps(hmm)) if gapped else hmm
    return sum(float(asked.log_prob(*batch).double().sum()) for batch in batches)


def expected(hmm: HMM, batches: list[tuple[Tensor, Tensor]], gapped: bool) -> tuple[float, Sums]:
    """log p of all sequences, and the expected counts of the model's tables."""
    counting, total = Counting(with_gaps(hmm) if gapped else hmm), 0.0
    for ids, lengths in batches:
        sequences = unchecked(counting.model, ids, lengths)
        log_prob, _ = counting.add(sequences, Carry.at_start(counting.model, len(ids)))
        total += float(log_prob.double().sum())
    sums = without_gaps(counting.sums, hmm.support) if gapped else counting.sums
    return total, sums


def maximised(
    hmm: HMM, sums: Sums, priors: Pseudocounts, letters: str, step_size: float = 1.0
) -> HMM:
    """The HMM with the tables of `letters` made from expected counts; the others stay."""
    found = HMM.of(improved(hmm, sums, step_size, priors))
    if letters == "ste":
        return found
    return HMM(
        found.start if "s" in letters else hmm.start,
        found.transitions if "t" in letters else hmm.transitions,
        found.emissions if "e" in letters else hmm.emissions,
        hmm.support,
    )


def pseudocounts(settings: Settings, hmm: HMM) -> Pseudocounts:
    """What the priors add to expected counts: their numbers less one.

    Raises ValueError for a prior of another shape, or a smoothing below 0.
    """
    if not 0 <= settings.smoothing < math.inf:
        raise ValueError(f"smoothing must be finite and not below 0, not {settings.smoothing}")
    size, known = hmm.num_states, hmm.vocabulary_size
    shapes = ((size,), (size, size), (size, known))
    found: list[float | Tensor] = []
    for name, shape in zip(PRIORS, shapes, strict=True):
        prior = prior_of(settings, name, shape) - 1.0
        same = len(prior) and bool((prior == prior.flat[0]).all())
        found.append(float(prior.flat[0]) if same else torch.from_numpy(np.array(prior)))
    emission = found[2]
    if isinstance(emission, Tensor):
        states = hmm.support.states(torch.arange(known)).clamp(min=0)  # (V, K)
        found[2] = emission.T.gather(1, states)
    return Pseudocounts(*found)


def _refuse_impossible(hmm: HMM, rows: Rows) -> None:
    """ValueError that names the first sequence of probability zero."""
    asked = HMM.of(with_gaps(hmm)) if rows.gapped else hmm
    for chosen, ids, lengths in rows.batches():
        impossible = torch.nonzero(~asked.log_prob(ids, lengths).isfinite())
        if len(impossible):
            raise ValueError(
                f"sequence {chosen[int(impossible[0])]} has probability zero in the initial HMM, "
                "so nothing can be learned from it"
            )
    raise ValueError("the likelihood is no longer a finite number; use more smoothing")
