"""How a `SequenceHMM` is fitted: from one or several beginnings, of which the likeliest is kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from bighmm.hmm import HMM
from bighmm.sequences.baum_welch import fit_tables
from bighmm.sequences.beginnings import first_tables, random_letters
from bighmm.sequences.descent import fit_parameters
from bighmm.sequences.progress import Progress, warn_if_improving
from bighmm.sequences.rows import Rows
from bighmm.sequences.settings import TABLES, Settings


class Fitted(NamedTuple):
    hmm: HMM  # in float64
    history: list[float]  # log p of all rows before each iteration, and after the last
    converged: bool
    scores: list[float]  # log p at the end, from each beginning


def fit(settings: Settings, rows: Rows, seed: int, known: HMM | Mapping[str, np.ndarray]) -> Fitted:
    """The likeliest of `n_init` fits, from seeds that follow each other.

    known: see `first_tables`.

    Raises ValueError for settings that do not go together, and for rows of probability zero.
    """
    if settings.optimizer not in ("baum-welch", "adamw"):
        raise ValueError(
            f"there is no optimizer {settings.optimizer!r}; use 'baum-welch' or 'adamw'"
        )
    tables = settings.optimizer == "baum-welch"
    if not tables and not isinstance(known, HMM) and known:
        name = f"{TABLES[next(iter(known))]}_"
        raise ValueError(
            f"{name} was set, but optimizer='adamw' begins at random; use 'baum-welch' with "
            "init_params"
        )
    all_given = tables and random_letters(settings) == ""  # then every beginning is the same
    found: list[tuple[HMM, Progress]] = []
    for beginning in range(1 if all_given else settings.n_init):
        progress = Progress(settings, rows.observed, beginning)
        if tables:
            first = first_tables(settings, rows, seed + beginning, known)
            hmm = fit_tables(settings, rows, first, progress)
        else:
            hmm = fit_parameters(settings, rows, seed + beginning, progress)
        found.append((hmm, progress))
    hmm, progress = max(found, key=lambda one: one[1].history[-1])
    warn_if_improving(progress)
    scores = [one.history[-1] for _, one in found]
    return Fitted(hmm, progress.history, progress.converged, scores)
