"""Tables of probabilities that a user sets one by one, under hmmlearn's names."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from bighmm.hmm import HMM
from bighmm.sequences.alphabet import Alphabet
from bighmm.sequences.errors import not_fitted
from bighmm.sequences.settings import TABLES

TOLERANCE = 1e-4  # by which a sum may differ from one


class TableAttribute:
    """A table of an estimator that can be read once it is fitted, and set before or instead.

    With all three tables set, the estimator is as if it had been fitted.
    """

    def __init__(self, letter: str) -> None:
        self.letter = letter

    def __get__(self, model: Any, owner: type | None = None) -> Any:
        if model is None:
            return self
        set_before = model.__dict__.get("_tables", {})
        if self.letter in set_before:
            return set_before[self.letter]
        if not model.__sklearn_is_fitted__():
            raise not_fitted()
        return tables_of(model.hmm_)[self.letter]

    def __set__(self, model: Any, value: Any) -> None:
        fitted = model.__sklearn_is_fitted__()
        states = model.hmm_.num_states if fitted else model.n_states
        tables = tables_of(model.hmm_) if fitted else model.__dict__.get("_tables", {})
        tables = tables | {self.letter: checked_table(self.letter, value, states)}
        alphabet = _alphabet_of(model, tables["e"].shape[1]) if "e" in tables else None
        hmm = hmm_of(tables)
        if hmm is None:
            model._tables = tables
        else:
            model._become(hmm, alphabet)


def checked_table(letter: str, value: Any, states: int) -> np.ndarray:
    """A table in float64, whose rows add up to one; ValueError if it is none."""
    name = f"{TABLES[letter]}_"
    try:
        table = np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a table of numbers") from None
    shapes = {"s": (states,), "t": (states, states), "e": (states, max(1, *table.shape[-1:], 1))}
    if table.shape != shapes[letter]:
        wanted = f"({states}, symbols)" if letter == "e" else shapes[letter]
        raise ValueError(f"{name} must have the shape {wanted}, not {table.shape}")
    sums = table.sum(-1)
    if not np.isfinite(table).all() or (table < 0).any() or (abs(sums - 1) > TOLERANCE).any():
        raise ValueError(f"the rows of {name} must be probabilities that add up to one")
    return table / sums[..., np.newaxis]


def hmm_of(tables: dict[str, np.ndarray]) -> HMM | None:
    """The HMM of tables by letter; None as long as one is not there."""
    if {*tables} < {*TABLES}:
        return None
    return HMM.from_probs(*(torch.from_numpy(tables[letter]) for letter in TABLES))


def _alphabet_of(model: Any, size: int) -> Alphabet:
    """The symbols of a model whose emissions have so many columns; ValueError if they are others.

    Those that it has, if it is fitted and has as many; or those of its settings.
    """
    fitted = model._alphabet if model.__sklearn_is_fitted__() else None
    if fitted is not None and fitted.size == size:
        return fitted
    found = Alphabet.asked_for(model.n_symbols, model.symbols)
    if found is None:  # numbers may become more or fewer, strings may not
        found = Alphabet(size) if fitted is None or fitted.names is None else fitted
    if found.size != size:
        raise ValueError(
            f"emissionprob_ must have a column for each of the {found.size} symbols, not {size} "
            "columns"
        )
    return found


def tables_of(hmm: HMM) -> dict[str, np.ndarray]:
    """Start (Z,), transitions (Z, Z) and emissions (Z, V) by letter; for small models."""
    return dict(zip(TABLES, (table.numpy() for table in hmm.tables()), strict=True))


def unseen_share(observed: int, different: int) -> float:
    """p of a symbol that was never seen, after so many symbols of so many kinds.

    The estimate of Witten and Bell: it counts how often a symbol was new.
    """
    share = different / (observed + different) if observed else 1 / (different + 1)
    return min(share, math.nextafter(1.0, 0.0))
