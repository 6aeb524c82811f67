"""The best path and the k best paths of a dense model, as compiled loops over positions.

Scores are logarithms with the best of a position at 0, and what was taken from them is summed apart
in float64. `search` keeps scores and no pointers: where a state was reached from is found again on
the way back, for the states of the path alone.
"""

from __future__ import annotations

import numpy as np

from bighmm.ops.jit import jit
from bighmm.ops.table_chain.sums import PANEL, by_row, copy_row, fill, is_new


@jit()
def search(rows, order, start, moves, words, scores, path, total):
    """The best path (B, T) of the rows `order`, and its log p(x, z) (B,).

    start: log p (Z,). moves: log p(j | i) and its transpose. words: log p(x | z), divided by its
    peak, (U, Z), and log peak (U,). scores (rows, T, Z) is memory to work in.
    """
    ids, lengths, _, _ = rows
    log_moves, log_columns = moves
    log_emitted, peaks = words
    count, size = len(order), len(start)
    current, reached = np.zeros((count, size), start.dtype), np.empty((count, size), start.dtype)
    vectors, time = by_row(scores), scores.shape[1]
    alive = count
    for t in range(lengths[order[0]] if count else 0):
        while lengths[order[alive - 1]] <= t:
            alive -= 1
        moving = False
        for g in range(alive):
            moving = moving or not is_new(rows, order[g], t)
        if moving:
            _reach(current, alive, log_moves, reached)
        for g in range(alive):
            row = order[g]
            if is_new(rows, row, t):
                best = current[g, _best(current, g)]
                for j in range(size):
                    reached[g, j] = best + start[j]
            top = _add(reached, g, log_emitted, ids[row, t])
            total[row] += top + peaks[ids[row, t]]
            if top > -np.inf:
                for j in range(size):
                    reached[g, j] -= top
            copy_row(reached, g, vectors, g * time + t)
        current, reached = reached, current
    for g in range(count):
        row = order[g]
        if total[row] == -np.inf:
            continue
        place = 0
        for t in range(lengths[row] - 1, -1, -1):
            if t == lengths[row] - 1 or is_new(rows, row, t + 1):
                place = _best(vectors, g * time + t)
            else:
                place = _best_sum(vectors, g * time + t, log_columns, place)
            path[row, t] = place


@jit()
def search_many(rows, order, start, log_columns, words, path, total):
    """The k best paths (B, k, T) of the rows `order`, and their log p(x, z) (B, k)."""
    ids, lengths, _, _ = rows
    log_emitted, peaks = words
    size, k = len(start), total.shape[1]
    current, reached = np.empty((k, size), start.dtype), np.empty((k, size), start.dtype)
    best, origin = np.empty(k, start.dtype), np.empty(k, np.int32)
    for row in order:
        length, shift = lengths[row], 0.0
        if length == 0:
            total[row, 0] = 0.0
            continue
        origins = np.empty((length, k, size), np.int32)  # entry · Z + state, one position before
        for entry in range(k):
            fill(current[entry], -np.inf)
        current[0, 0] = 0.0  # before the first word
        for t in range(length):
            if is_new(rows, row, t):
                _keep_all(current, best, origin)
                for j in range(size):
                    for entry in range(k):
                        reached[entry, j] = best[entry] + start[j]
                        origins[t, entry, j] = origin[entry]
            else:
                for j in range(size):
                    _keep(current, log_columns[j], best, origin)
                    for entry in range(k):
                        reached[entry, j] = best[entry]
                        origins[t, entry, j] = origin[entry]
            word = ids[row, t]
            for entry in range(k):
                for j in range(size):
                    reached[entry, j] += log_emitted[word, j]
            top = reached[0, _best(reached, 0)]
            shift += top + peaks[word]
            if top == -np.inf:
                break
            for entry in range(k):
                for j in range(size):
                    reached[entry, j] -= top
            current, reached = reached, current
        if shift == -np.inf:
            continue
        _keep_all(current, best, origin)
        for n in range(k):
            if best[n] == -np.inf:
                break
            total[row, n] = best[n] + shift
            place = origin[n]
            for t in range(length - 1, -1, -1):
                path[row, n, t] = place % size
                place = origins[t, place // size, place % size]


@jit()
def _reach(current, rows, matrix, out):
    """out_j = max_i current_i + matrix_ij, for the first rows."""
    height, width = matrix.shape
    for first in range(0, width, PANEL):
        last = min(first + PANEL, width)
        for g in range(rows):
            fill(out[g, first:last], -np.inf)
        i = 0
        while i + 4 <= height:
            m0, m1 = matrix[i, first:last], matrix[i + 1, first:last]
            m2, m3 = matrix[i + 2, first:last], matrix[i + 3, first:last]
            for g in range(rows):
                a0, a1 = current[g, i], current[g, i + 1]
                a2, a3 = current[g, i + 2], current[g, i + 3]
                found = out[g, first:last]
                for j in range(last - first):
                    best = found[j]
                    value = a0 + m0[j]
                    best = value if value > best else best
                    value = a1 + m1[j]
                    best = value if value > best else best
                    value = a2 + m2[j]
                    best = value if value > best else best
                    value = a3 + m3[j]
                    found[j] = value if value > best else best
            i += 4
        while i < height:
            m0 = matrix[i, first:last]
            for g in range(rows):
                a0, found = current[g, i], out[g, first:last]
                for j in range(last - first):
                    value = a0 + m0[j]
                    found[j] = value if value > found[j] else found[j]
            i += 1


@jit("nnan", "nsz")
def _add(scores, row, more, word):
    """Add to the scores of a row, and return their maximum."""
    top = scores[row, 0] + more[word, 0]
    for j in range(scores.shape[1]):
        value = scores[row, j] + more[word, j]
        scores[row, j] = value
        top = max(top, value)
    return top


@jit()
def _best(scores, row):
    """The first place of the highest score of a row."""
    place = 0
    for i in range(scores.shape[1]):
        if scores[row, i] > scores[row, place]:
            place = i
    return place


@jit()
def _best_sum(scores, row, more, other):
    """The first place of the highest sum of a row and another one."""
    place, top = 0, scores[row, 0] + more[other, 0]
    for i in range(scores.shape[1]):
        value = scores[row, i] + more[other, i]
        if value > top:
            place, top = i, value
    return place


@jit()
def _keep_all(current, best, origin):
    """The k best of all entries (k, Z), best first, and entry · Z + state of each."""
    fill(best, -np.inf)
    fill(origin, 0)
    for i in range(current.shape[1]):
        _insert(current, i, current.dtype.type(0), best, origin)


@jit()
def _keep(current, moves, best, origin):
    """The k best of all entries (k, Z) after the moves (Z,), as `_keep_all`."""
    fill(best, -np.inf)
    fill(origin, 0)
    for i in range(current.shape[1]):
        _insert(current, i, moves[i], best, origin)


@jit()
def _insert(current, i, move, best, origin):
    """Put the entries of state i where they belong among the best; its own are best first."""
    k, size = current.shape
    for entry in range(k):
        value = current[entry, i] + move
        if not value > best[k - 1]:
            return
        place = k - 1
        while place > 0 and value > best[place - 1]:
            best[place], origin[place] = best[place - 1], origin[place - 1]
            place -= 1
        best[place], origin[place] = value, entry * size + i
