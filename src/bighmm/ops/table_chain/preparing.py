"""Tables of log-probabilities as the loops read them.

Of small tables, the exponentials are NumPy's, which does several at once, and the rest is in the
compiled loops of `making`. Large ones are made by torch.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from bighmm.base.arrays import as_array
from bighmm.ops.log_matmul import SMALLEST_SUM
from bighmm.ops.table_chain import making
from bighmm.ops.table_chain.tables import Matrix, Start, Words

FEW_CELLS = 2**12  # of a table up to which making it in a compiled loop is faster than in torch
PRODUCTS = {  # the least product that is still a number, divided by SMALLEST_SUM
    np.dtype(name): torch.finfo(kind).tiny / SMALLEST_SUM[kind]
    for name, kind in (("float32", torch.float32), ("float64", torch.float64))
}


def prepare_start(log_probs: Tensor) -> Start | None:
    """Log-probabilities (Z,) as the loops read them; None if some are NaN."""
    return start_of(as_array(log_probs))


def prepare_matrix(log_probs: Tensor) -> Matrix | None:
    """Log-probabilities (Z, Z) as the loops read them; None if some are NaN."""
    if log_probs.numel() <= FEW_CELLS:
        return matrix_of(as_array(log_probs))
    log_probs = log_probs.detach().contiguous()
    logs, columns = log_probs.numpy(), log_probs.T.contiguous().numpy()
    exps = log_probs.exp()
    probs, both = exps.numpy(), exps.T.contiguous().numpy()
    least = float(log_probs.masked_fill(log_probs == -torch.inf, 0.0).min())
    if math.isnan(least) or not bool((log_probs < torch.inf).all()):
        return None
    return Matrix(logs, columns, probs, both, math.exp(least) >= PRODUCTS[logs.dtype])


def prepare_words(log_probs: Tensor) -> Words | None:
    """Log-probabilities (U, Z) of some words; None if some are NaN."""
    if log_probs.numel() <= FEW_CELLS:
        return words_of(as_array(log_probs))
    log_probs = log_probs.detach()
    peaks = log_probs.amax(1)
    if not bool((peaks < torch.inf).all()):
        return None
    scaled = (log_probs - peaks.clamp(min=torch.finfo(peaks.dtype).min).unsqueeze(1)).contiguous()
    peaks = peaks.double().nan_to_num(neginf=0.0)
    return Words(scaled.exp().numpy(), scaled.numpy(), peaks.numpy())


def start_of(logs: np.ndarray) -> Start | None:
    """As `prepare_start`, of an array."""
    return Start(np.exp(logs), logs) if making.none_is_nan(logs) else None


def matrix_of(logs: np.ndarray) -> Matrix | None:
    """As `prepare_matrix`, of an array."""
    probs, columns, log_columns = np.exp(logs), np.empty_like(logs), np.empty_like(logs)
    least = making.least_of(logs, log_columns, probs, columns)
    if math.isnan(least):
        return None
    return Matrix(logs, log_columns, probs, columns, math.exp(least) >= PRODUCTS[logs.dtype])


def words_of(logs: np.ndarray) -> Words | None:
    """As `prepare_words`, of an array."""
    scaled, peaks = np.empty_like(logs), np.empty(len(logs))
    if not making.divide_by_peaks(logs, scaled, peaks):
        return None
    return Words(np.exp(scaled), scaled, peaks)


def cumulated(log_weights: Tensor) -> np.ndarray:
    """Sums (N, C) of the weights of each row up to each place, as `ops.drawing` looks them up."""
    return log_weights.softmax(1).cumsum(1, dtype=torch.float64).numpy()
