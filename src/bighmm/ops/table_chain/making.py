"""Compiled loops that make small tables. Each would be ten calls of torch, which take longer than
a short sequence does."""

from __future__ import annotations

import math

import numpy as np

from bighmm.ops.jit import jit


@jit()
def least_of(log_probs, log_columns, probs, columns):
    """The least of log_probs (Z, Z) above -inf; NaN if one of them is, or is inf.

    Fills the transposes `log_columns` and `columns`.
    """
    least = 0.0
    for i in range(len(log_probs)):
        for j in range(len(log_probs)):
            value = log_probs[i, j]
            if not value < np.inf:
                return np.nan
            if value > -np.inf:
                least = min(least, value)
            log_columns[j, i] = value
            columns[j, i] = probs[i, j]
    return least


@jit()
def divide_by_peaks(log_probs, scaled, peaks):
    """Fill the last two from log_probs (U, Z), as `Words` has them; False if there is a NaN."""
    for i in range(len(log_probs)):
        peak = -np.inf
        for j in range(log_probs.shape[1]):
            if not log_probs[i, j] < np.inf:
                return False
            peak = max(peak, log_probs[i, j])
        peaks[i] = peak if peak > -np.inf else 0.0
        for j in range(log_probs.shape[1]):
            scaled[i, j] = log_probs[i, j] - log_probs.dtype.type(peaks[i])
    return True


@jit()
def all_below(ids, limit):
    """Whether all ids (B, T) are from 0 to limit - 1."""
    for row in range(ids.shape[0]):
        for t in range(ids.shape[1]):
            if not 0 <= ids[row, t] < limit:
                return False
    return True


@jit()
def log_shares(logits):
    """logits_ij - log Σ_k exp(logits_ik); NaN and inf as torch has them."""
    found = np.empty_like(logits)
    for i in range(len(logits)):
        top = logits[i, 0]
        for j in range(logits.shape[1]):
            top = max(top, logits[i, j])
        total = 0.0
        for j in range(logits.shape[1]):
            total += math.exp(logits[i, j] - top)
        norm = top + math.log(total)
        for j in range(logits.shape[1]):
            found[i, j] = logits[i, j] - norm
    return found


@jit()
def none_is_nan(log_probs):
    """Whether each is a number below infinity."""
    return np.all(log_probs < np.inf)
