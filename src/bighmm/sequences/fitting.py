"""How a `SequenceHMM` is fitted: by Baum-Welch on tables, or by AdamW on any parameters."""

from __future__ import annotations

import dataclasses
import math
from numbers import Integral, Real
from typing import TYPE_CHECKING

import numpy as np
import torch

from bighmm.data import brown
from bighmm.hmm import HMM
from bighmm.infer.counts import Sums
from bighmm.model import params
from bighmm.model.emissions import EmissionTable
from bighmm.model.params import Parameterisation
from bighmm.model.support import Blocked, Dense, Free, Support
from bighmm.sequences.rows import Rows
from bighmm.train.baum_welch import improved

if TYPE_CHECKING:
    from bighmm.sequences.estimator import SequenceHMM

LARGEST_GRADIENT = 5.0
COUNTS = ("n_states", "n_symbols", "n_blocks", "n_alive", "iterations", "batch_size", "n_init")
NUMBERS = ("tolerance", "smoothing", "lr")


def check_settings(settings: SequenceHMM) -> None:
    """Raises ValueError for the first setting that is not of its kind."""
    for name in COUNTS:
        value = getattr(settings, name)
        if name == "n_symbols" and value is None:
            continue
        if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")
    for name in NUMBERS:
        value = getattr(settings, name)
        if not isinstance(value, Real) or math.isnan(value):
            raise ValueError(f"{name} must be a number, not {value!r}")
    if settings.initial is not None and not isinstance(settings.initial, HMM):
        raise ValueError(f"initial must be an HMM or None, not {type(settings.initial).__name__}")


def first_hmm(settings: SequenceHMM, rows: Rows, symbols: int, seed: int) -> HMM:
    """What Baum-Welch begins with: the HMM that was given, or random tables."""
    if settings.parameters != "scalar":
        raise ValueError(
            f"Baum-Welch makes tables of probabilities, so it needs parameters='scalar', not "
            f"{settings.parameters!r}; use optimizer='adamw'"
        )
    initial = settings.initial
    if initial is None:
        return finished(new_parameters(settings, rows, symbols, seed))
    if (initial.num_states, initial.vocabulary_size) != (settings.n_states, symbols):
        raise ValueError(
            f"the initial HMM has {initial.num_states} states and {initial.vocabulary_size} "
            f"symbols, not {settings.n_states} and {symbols}"
        )
    return dataclasses.replace(initial.to("cpu", torch.float64), end=None)


def baum_welch(settings: SequenceHMM, hmm: HMM, rows: Rows) -> tuple[HMM, list[float]]:
    """Iterations over all sequences; the fitted HMM and its history."""
    if not 0 <= settings.smoothing < math.inf:
        raise ValueError(f"smoothing must be finite and not below 0, not {settings.smoothing}")
    total, counts = _count(hmm, rows)
    history = [total]
    for _ in range(settings.iterations):
        hmm = improved(hmm, counts, smoothing=settings.smoothing)
        total, counts = _count(hmm, rows)
        history.append(total)
        if _settled(history, rows, settings.tolerance):
            break
    return hmm, history


def adamw(settings: SequenceHMM, rows: Rows, symbols: int, seed: int) -> tuple[HMM, list[float]]:
    """Passes over all sequences in batches that are drawn anew.

    While the parameters change the history has the sum over a pass of what each batch had.
    """
    if not 0 < settings.lr < math.inf:
        raise ValueError(f"lr must be finite and above 0, not {settings.lr}")
    if settings.initial is not None:
        raise ValueError("an initial HMM is for optimizer='baum-welch'; leave it out for 'adamw'")
    module = new_parameters(settings, rows, symbols, seed)
    optimizer = torch.optim.AdamW(module.parameters(), lr=settings.lr, weight_decay=0.0)
    generator = np.random.default_rng(seed)
    filled = np.array([number for number, row in enumerate(rows.rows) if len(row)])
    history: list[float] = []
    for _ in range(settings.iterations):
        order = generator.permutation(filled)
        total = 0.0
        for first in range(0, len(order), settings.batch_size):
            ids, lengths = rows.padded(order[first : first + settings.batch_size].tolist())
            log_prob = module().log_prob(ids, lengths).sum()
            if not bool(log_prob.isfinite()):
                raise ValueError(
                    "the likelihood is no longer a finite number; use a smaller lr than "
                    f"{settings.lr}"
                )
            optimizer.zero_grad()
            (-log_prob / lengths.sum()).backward()
            torch.nn.utils.clip_grad_norm_(module.parameters(), LARGEST_GRADIENT)
            optimizer.step()
            total += float(log_prob.detach())
        history.append(total)
        if _settled(history, rows, settings.tolerance):
            break
    hmm = finished(module)
    after = sum(float(hmm.log_prob(ids, lengths).sum()) for _, ids, lengths in rows.batches())
    if not math.isfinite(after):
        raise ValueError(f"the likelihood is no longer finite; use a smaller lr than {settings.lr}")
    return hmm, [*history, after]


def new_parameters(settings: SequenceHMM, rows: Rows, symbols: int, seed: int) -> Parameterisation:
    options = params.find(settings.parameters).options
    support = new_support(settings, rows, symbols, seed)
    try:
        chosen = options(**(settings.options or {}))
        return params.build(settings.parameters, chosen, support, None, seed)
    except TypeError:
        known = ", ".join(field.name for field in dataclasses.fields(options))
        raise ValueError(
            f"options {settings.options!r} do not fit the parameters {settings.parameters!r}, "
            f"which have {known}"
        ) from None


def new_support(settings: SequenceHMM, rows: Rows, symbols: int, seed: int) -> Support:
    if settings.support == "dense":
        return Dense(settings.n_states, symbols)
    if settings.support == "free":
        return Free.random(symbols, settings.n_states, settings.n_alive, seed)
    if settings.support == "blocked":
        classes = brown.cluster(np.concatenate(rows.rows), symbols, settings.n_blocks).classes
        return Blocked.of(torch.from_numpy(classes.astype(np.int64)), settings.n_states)
    raise ValueError(f"there is no support {settings.support!r}; use 'dense', 'blocked' or 'free'")


@torch.no_grad()
def finished(module: Parameterisation) -> HMM:
    """The HMM of trained parameters, apart from them, in float64."""
    made = module.double()()  # before anything is normalised
    emissions = EmissionTable(made.emission)
    made = dataclasses.replace(made, transitions=made.transitions.detach(), emissions=emissions)
    return made.to("cpu", torch.float64)


def _count(hmm: HMM, rows: Rows) -> tuple[float, Sums]:
    """log p of all sequences, and their expected counts."""
    total, sums = 0.0, None
    for chosen, ids, lengths in rows.batches():
        found = hmm.expected_counts(ids, lengths)
        impossible = torch.nonzero(~found.log_prob.isfinite())
        if len(impossible):
            raise ValueError(
                f"sequence {chosen[int(impossible[0])]} has probability zero in the initial HMM, "
                "so nothing can be learned from it"
            )
        total += float(found.log_prob.sum())
        part = Sums(found.start, found.transition, found.emission)
        sums = part if sums is None else Sums(*(a + b for a, b in zip(sums, part, strict=True)))
    assert sums is not None, "there is at least one sequence"
    return total, sums


def _settled(history: list[float], rows: Rows, tolerance: float) -> bool:
    if len(history) < 2:
        return False
    return abs(history[-1] - history[-2]) < tolerance * rows.symbols
