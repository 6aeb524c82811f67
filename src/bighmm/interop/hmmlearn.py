"""Conversion to and from `CategoricalHMM` of hmmlearn; the former needs `bighmm[hmmlearn]`.

hmmlearn has no end mark, and never resets the state inside a sequence. Both libraries give the same
results if hmmlearn gets each text as a sequence of its own, with its argument `lengths`.
"""

from __future__ import annotations

import importlib.util
from typing import Any

from bighmm.base.arrays import as_tensor
from bighmm.hmm import HMM
from bighmm.interop.arrays import LIMIT, to_numpy

PARTS = ("startprob_", "transmat_", "emissionprob_")


def to_hmmlearn(hmm: HMM, limit: int = LIMIT, **options: Any) -> Any:
    """A `CategoricalHMM` with the probabilities of `hmm`.

    limit: the most entries of a table, as for `to_numpy`.
    options: arguments of the constructor of `CategoricalHMM`.

    Raises ValueError if hmmlearn is not installed, or a table would have more than `limit` entries.
    """
    if importlib.util.find_spec("hmmlearn") is None:
        raise ValueError("hmmlearn is not installed; install bighmm[hmmlearn]")
    from hmmlearn.hmm import CategoricalHMM

    tables = to_numpy(hmm, limit)
    model = CategoricalHMM(hmm.num_states, **options)
    model.n_features = hmm.vocabulary_size
    for name, table in zip(PARTS, tables.values(), strict=True):
        setattr(model, name, table)
    return model


def from_hmmlearn(model: Any, *, end: int | None = None, reset: bool = True) -> HMM:
    """An `HMM` with the probabilities of a `CategoricalHMM`, which must have been fitted or set.

    end, reset: as for `HMM.from_probs`.

    Raises ValueError for a model without these probabilities, such as one with Gaussian emissions.
    """
    missing = [name for name in PARTS if not hasattr(model, name)]
    if missing:
        raise ValueError(
            f"{type(model).__name__} has no {missing[0]}; a CategoricalHMM is needed that has been "
            "fitted or been given its probabilities"
        )
    start, transition, emission = (as_tensor(getattr(model, name)) for name in PARTS)
    return HMM.from_probs(start, transition, emission, end=end, reset=reset)
