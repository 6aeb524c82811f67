"""A small dense model and its sequences as the compiled loops read them.

Z states, B rows, T positions, U different words.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from torch import Tensor


class Rows(NamedTuple):
    """Sequences of words as the loops read them."""

    ids: np.ndarray  # (B, T) int64, places among the `Words`
    lengths: np.ndarray  # (B,) int64
    fresh: np.ndarray  # (B,) bool: the first state is drawn from the start distribution; or empty
    end: int  # after this word a state is drawn from there, too; -1 for none


class Start(NamedTuple):
    probs: np.ndarray  # (Z,)
    log_probs: np.ndarray  # (Z,)


class Matrix(NamedTuple):
    """A transition matrix as the loops read it."""

    log_probs: np.ndarray  # (Z, Z) log p(j | i)
    log_columns: np.ndarray  # its transpose
    probs: np.ndarray
    columns: np.ndarray
    trusted: bool  # no product with a number from SMALLEST_SUM up is below the smallest number


class Words(NamedTuple):
    """What the states emit of some words."""

    probs: np.ndarray  # (U, Z) p(x | z), divided by the largest of its word
    log_probs: np.ndarray  # (U, Z) its logarithm
    log_peaks: np.ndarray  # (U,) log of what it was divided by, float64


class Tables(NamedTuple):
    """A model, or as much of it as some rows need."""

    start: Start
    matrix: Matrix
    words: Words


class Counted(NamedTuple):
    log_prob: Tensor  # (B,)
    ended: Tensor  # (B, Z) log p(z | x) at the end of each row; or empty
    start: Tensor  # (Z,) expected starts
    transition: Tensor  # (Z, Z) expected moves
    emission: Tensor  # (U, Z) expected emissions of each word
