"""The sweeps of `sums` and the search of `paths` for very few states, row by row.

With few states a step is a handful of multiplications, and what it costs is how long one must wait
for the other. So sums are kept in registers, nothing is done for several rows at once, and vectors
are not divided by their sum before it is below a limit, the fourth root of `small`. A row where a
number comes near the smallest one is given up, and is done by `sums` instead.
"""

from __future__ import annotations

import math

import numpy as np

from bighmm.ops.jit import jit
from bighmm.ops.table_chain.sums import is_new

FEW = 8  # states, in any number of rows
FEW_ROWS, FEW_IN_FEW_ROWS = 8, 16  # and states in fewer rows than this


def fits(states: int, rows: int) -> bool:
    """Whether these loops are the faster ones."""
    return states <= (FEW_IN_FEW_ROWS if rows < FEW_ROWS else FEW)


@jit("contract")
def forward(rows, order, first, columns, emitted, peaks, small, stored, ended, total, given_up):
    """As `sums.forward`, for rows that begin with a start. Returns how many rows are given up.

    first: p(z_1) (Z,). columns: p(j | i) with j as its rows. given_up (B,) bool: rows not done.
    """
    ids, lengths, _, _ = rows
    size = len(first)
    current, new = np.empty_like(first), np.empty_like(first)
    keeps, limit, lost = len(stored) > 0, math.sqrt(math.sqrt(small)), 0
    for row in order:
        log_prob, mass = 0.0, first[0] * 0 + 1
        for t in range(lengths[row]):
            word = ids[row, t]
            before, mass, least = mass, first[0] * 0, first[0] * 0
            anew = is_new(rows, row, t)
            for j in range(size):
                value = first[j] * before
                if not anew:
                    value = current[0] * columns[j, 0]
                    for i in range(1, size):
                        value += current[i] * columns[j, i]
                value *= emitted[word, j]
                new[j] = value
                mass += value
                least = value if j == 0 else min(least, value)
            if not least >= small:
                given_up[row] = True
                lost += 1
                break
            if mass < limit:
                inverse = 1 / mass
                for j in range(size):
                    new[j] *= inverse
                log_prob += math.log(mass)
                mass = mass * 0 + 1
            if keeps:
                for j in range(size):
                    stored[row, t + 1, j] = new[j]
            log_prob += peaks[word]
            current, new = new, current
        total[row] = log_prob + math.log(mass)
        if len(ended) and lengths[row]:
            for j in range(size):
                ended[row, j] = math.log(current[j])
    return lost


@jit("contract")
def backward(rows, order, probs, emitted, small, safe, stored, marginals, counts, given_up):
    """As `sums.backward`, after `forward`; rows that it gave up are left out.

    Returns how many these are; -1 if another row had to be given up, in which case counts and
    marginals are of no use.

    counts: expected starts (Z,), what is to be multiplied with p(j | i) for expected moves (Z, Z),
    and expected emissions (U, Z). Empty: not asked for.
    """
    ids, lengths, _, _ = rows
    starts, moves, emissions = counts
    size = len(probs)
    current, moved = np.empty_like(probs[0]), np.empty_like(probs[0])
    share, limit = np.empty_like(probs[0]), math.sqrt(math.sqrt(small))
    smooths, counts_them, lost = len(marginals) > 0, len(starts) > 0, 0
    for row in order:
        if given_up[row]:
            lost += 1
            continue
        for t in range(lengths[row] - 1, -1, -1):
            moves_on = t + 1 < lengths[row] and not is_new(rows, row, t + 1)
            mass = probs[0, 0] * 0
            for i in range(size):
                value = 1 + mass * 0
                if moves_on:
                    value = probs[i, 0] * current[0]
                    for j in range(1, size):
                        value += probs[i, j] * current[j]
                moved[i] = value
                share[i] = stored[row, t + 1, i] * value
            for i in range(size):
                mass += share[i]
            if not mass >= safe:
                return -1
            inverse = 1 / mass
            word = ids[row, t]
            for i in range(size):
                share[i] *= inverse
            if smooths:
                for i in range(size):
                    marginals[row, t, i] = share[i]
            if counts_them:
                if moves_on:
                    for i in range(size):
                        weight = stored[row, t + 1, i] * inverse
                        for j in range(size):
                            moves[i, j] += weight * current[j]
                for i in range(size):
                    emissions[word, i] += share[i]
                if is_new(rows, row, t):
                    for i in range(size):
                        starts[i] += share[i]
            total = least = mass * 0
            for j in range(size):
                value = moved[j] * emitted[word, j]
                current[j] = value
                total += value
                least = value if j == 0 else min(least, value)
            if not least >= small:
                return -1
            if total < limit:
                inverse = 1 / total
                for j in range(size):
                    current[j] *= inverse
    return lost


@jit()
def both(rows, order, start, matrix, words, limits, marginals, counts, total):
    """`forward` and `backward` in one call, for rows of one thread. Returns whether all went well.

    start: p (Z,). matrix: p(j | i), and with j as its rows. words: p(x | z) / peak (U, Z) and
    log peak (U,). limits: `small` and `safe`. Otherwise as for the two; expected moves are whole.
    """
    ids, _, _, _ = rows
    probs, columns = matrix
    emitted, peaks = words
    small, safe = limits
    stored = np.empty((ids.shape[0], ids.shape[1] + 1, len(start)), start.dtype)
    ended, given_up = np.empty((0, len(start)), start.dtype), np.zeros(len(ids), np.bool_)
    given = (start, columns, emitted, peaks, small, stored, ended, total, given_up)
    if forward(rows, order, *given) > 0:
        return False
    given_back = (probs, emitted, small, safe, stored, marginals, counts, given_up)
    if backward(rows, order, *given_back) != 0:
        return False
    moves = counts[1]
    for i in range(len(moves)):
        for j in range(len(moves)):
            moves[i, j] *= probs[i, j]
    return True


@jit()
def search(rows, order, start, log_columns, log_emitted, peaks, path, total):
    """As `paths.search`. What is taken from the scores is the best of one position before.

    Where a state was reached from is kept: finding it again on the way back would have to wait for
    the place after it at every position.
    """
    ids, lengths, _, _ = rows
    size = len(start)
    longest = 0
    for row in order:
        longest = max(longest, lengths[row])
    sources = np.empty((longest, size), np.uint8)
    current, new = np.empty_like(start), np.empty_like(start)
    for row in order:
        log_prob, length = 0.0, lengths[row]
        top, place = start.dtype.type(0), 0
        for t in range(length):
            word, taken = ids[row, t], top
            if is_new(rows, row, t):
                for j in range(size):
                    new[j] = start[j] + log_emitted[word, j]
                    sources[t, j] = place
            else:
                for j in range(size):
                    value, source = current[0] + log_columns[j, 0], 0
                    for i in range(1, size):
                        other = current[i] + log_columns[j, i]
                        source = i if other > value else source
                        value = other if other > value else value
                    new[j] = value + (log_emitted[word, j] - taken)
                    sources[t, j] = source
            top, place = new[0], 0
            for j in range(1, size):
                place = j if new[j] > top else place
                top = new[j] if new[j] > top else top
            log_prob += taken + peaks[word]
            if top == -np.inf:
                break
            current, new = new, current
        total[row] = log_prob + top
        if top == -np.inf:
            continue
        for t in range(length - 1, -1, -1):
            path[row, t] = place
            place = np.int64(sources[t, place])
