"""Small tables of log-probabilities as the loops read them, made in compiled loops.

Each of these would be ten calls of torch, which take longer than a short sequence does. They return
NaN where a table has a number that is none.
"""

from __future__ import annotations

import math

import numpy as np

from bighmm.ops.jit import jit


@jit()
def make_matrix(log_probs, log_columns, probs, columns):
    """Fill the last three from log_probs (Z, Z); returns the least log-probability above -inf."""
    least = 0.0
    for i in range(len(log_probs)):
        for j in range(len(log_probs)):
            value = log_probs[i, j]
            if not value < np.inf:
                return np.nan
            if value > -np.inf:
                least = min(least, value)
            log_columns[j, i] = value
            probs[i, j] = columns[j, i] = math.exp(value)
    return least


@jit()
def make_words(log_probs, probs, scaled, peaks):
    """Fill the last three from log_probs (U, Z), as `Words` has them."""
    for i in range(len(log_probs)):
        peak = -np.inf
        for j in range(log_probs.shape[1]):
            if not log_probs[i, j] < np.inf:
                return np.nan
            peak = max(peak, log_probs[i, j])
        peaks[i] = peak if peak > -np.inf else 0.0
        for j in range(log_probs.shape[1]):
            scaled[i, j] = log_probs[i, j] - log_probs.dtype.type(peaks[i])
            probs[i, j] = math.exp(scaled[i, j])
    return 0.0
