"""New probabilities from expected counts, in compiled loops for small tables.

For each cell θ ← α · (n + smoothing) / Σ (n + smoothing) + (1 − α) · θ. What is zero stays so,
nothing else falls below `least`, and a distribution without counts stays as it is.

What comes out are probabilities, since NumPy takes several logarithms at once; a cell that stays as
it is becomes -1.
"""

from __future__ import annotations

import math

import numpy as np

from bighmm.ops.jit import jit


@jit()
def mix(old, counts, size, added, least, new):
    """Fill `new`; returns whether some cells stay as they are.

    old, counts, new: start (Z,), moves (Z, Z) and emission (V, Z). size is α; added: the smoothing
    of each of the three.
    """
    rows = _of_rows(_row(old[0]), _row(counts[0]), size, added[0], least, _row(new[0]))
    more = _of_rows(old[1], counts[1], size, added[1], least, new[1])
    columns = _of_columns(old[2], counts[2], size, added[2], least, new[2])
    return rows or more or columns


@jit()
def keep_old(old, new, logs):
    """Where `new` is below 0 the logarithm is the old one."""
    _keep_old(_row(old[0]), _row(new[0]), _row(logs[0]))
    _keep_old(old[1], new[1], logs[1])
    _keep_old(old[2], new[2], logs[2])


@jit()
def _row(vector):
    return vector.reshape((1, len(vector)))


@jit()
def _of_rows(old, counts, size, smoothing, least, new):
    """Each row of (R, C) is a distribution; size is α. Returns whether some cells stay."""
    stay = False
    for i in range(len(old)):
        total = smoothed = 0.0
        for j in range(old.shape[1]):
            total += counts[i, j]
            if old[i, j] > -np.inf:
                smoothed += counts[i, j] + smoothing
        for j in range(old.shape[1]):
            new[i, j] = _mixed(old[i, j], counts[i, j], total, smoothed, size, smoothing, least)
            stay = stay or new[i, j] < 0
    return stay


@jit()
def _of_columns(old, counts, size, smoothing, least, new):
    """Each column of (R, C) is a distribution. Returns whether some cells stay."""
    stay, width = False, old.shape[1]
    total, smoothed = np.zeros(width), np.zeros(width)
    for i in range(len(old)):
        for j in range(width):
            total[j] += counts[i, j]
            if old[i, j] > -np.inf:
                smoothed[j] += counts[i, j] + smoothing
    for i in range(len(old)):
        for j in range(width):
            count = counts[i, j]
            new[i, j] = _mixed(old[i, j], count, total[j], smoothed[j], size, smoothing, least)
            stay = stay or new[i, j] < 0
    return stay


@jit()
def _keep_old(old, new, logs):
    for i in range(len(old)):
        for j in range(old.shape[1]):
            if new[i, j] < 0:
                logs[i, j] = old[i, j]


@jit()
def _mixed(old, count, total, smoothed, size, smoothing, least):
    """The new probability; -1 if the old one stays."""
    if old == -np.inf or not total > least:
        return -1.0
    share = (count + smoothing) / smoothed
    if size != 1:
        share = size * share + (1 - size) * math.exp(old)
    return max(share, least)
