"""New probabilities from expected counts, in a compiled loop for small tables.

For each cell θ ← α · (n + smoothing) / Σ (n + smoothing) + (1 − α) · θ, in logarithms. What is -inf
stays so, nothing else falls below `least`, and a distribution without counts stays as it is.
"""

from __future__ import annotations

import math

import numpy as np

from bighmm.ops.jit import jit


@jit()
def of_rows(old, counts, size, smoothing, least, new):
    """Each row of (R, C) is a distribution; size is α."""
    for i in range(len(old)):
        total = smoothed = 0.0
        for j in range(old.shape[1]):
            total += counts[i, j]
            if old[i, j] > -np.inf:
                smoothed += counts[i, j] + smoothing
        for j in range(old.shape[1]):
            new[i, j] = _mixed(old[i, j], counts[i, j], total, smoothed, size, smoothing, least)


@jit()
def of_columns(old, counts, size, smoothing, least, new):
    """Each column of (R, C) is a distribution."""
    total, smoothed = np.zeros(old.shape[1]), np.zeros(old.shape[1])
    for i in range(len(old)):
        for j in range(old.shape[1]):
            total[j] += counts[i, j]
            if old[i, j] > -np.inf:
                smoothed[j] += counts[i, j] + smoothing
    for i in range(len(old)):
        for j in range(old.shape[1]):
            count = counts[i, j]
            new[i, j] = _mixed(old[i, j], count, total[j], smoothed[j], size, smoothing, least)


@jit()
def _mixed(old, count, total, smoothed, size, smoothing, least):
    if old == -np.inf or not total > least:
        return old
    share = (count + smoothing) / smoothed
    if size != 1:
        share = size * share + (1 - size) * math.exp(old)
    return math.log(max(share, least))
