"""The sweeps of a dense model as compiled loops over positions, for float32 and float64 on a CPU.

A vector of states is kept in probability space, with sum 1. The rule for what may have lost mass is
that of `ops.log_matmul`: a sum below `small` is computed again in log space. So that this can be
done, a state whose own probability is below `small` is kept as its logarithm. In stored vectors a
number below zero is such a logarithm, any other a probability.

The backward sweep is the forward sweep of the reversed text with the transposed matrix. With
a_t = p(z_t | x_1 … x_t) and u_t(j) ∝ p(x_t | j) p(x_t+1 … x_T | j), both with sum 1, it has

    b_t = P u_t+1,   s_t = Σ_j a_t(j) b_t(j),   p(z_t = j | x) = a_t(j) b_t(j) / s_t
    expected moves from t to t + 1: a_t(i) P_ij u_t+1(j) / s_t

Rows go side by side, the longest first, so that a piece of the matrix is read once for all of them.
What is called at every position takes a table and the number of a row, not the row: numba counts
the references to an array that is made by indexing, which takes longer than a row of few states.
Z states, B rows, T positions, U different words.
"""

from __future__ import annotations

import math

import numpy as np

from bighmm.ops.jit import jit

PANEL = 512  # columns of the matrix that are done together, so that sums stay in the cache
UNDERFLOW = 1e-100  # a product of scales is turned into a logarithm before it is below this


@jit()
def forward(
    rows, order, carried, start, matrix, words, small, stored, ended, total
):  # fmt: skip
    """Filter the rows `order`, into total (B,) log p, and ended (B, Z) log p(z | x) at their end.

    rows: see `Rows`. carried (B, Z): log p(z) before; empty if all rows begin with a start.
    start: p and log p (Z,) each. matrix: p(j | i), and log p with j as its rows (Z, Z), and whether
    no product of it with a number from `small` up can be lost. words: p(x | z) / peak and its
    logarithm (U, Z) each, and log peak (U,).
    stored (B, T + 1, Z): the filtered vectors, the first of which is `carried`; empty: not kept.
    `ended` may be empty, too.
    """
    ids, lengths, _, _ = rows
    first, log_first = start
    probs, log_moves, trusted = matrix
    emitted, log_emitted, peaks = words
    count, size = len(order), probs.shape[0]
    current, moved = np.empty((count, size), probs.dtype), np.empty((count, size), probs.dtype)
    new = np.empty((count, size), probs.dtype)
    kept = np.zeros((count, size), probs.dtype)  # as they are stored
    low, dead = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
    scale, log_moved, logs = np.ones(count), np.empty_like(first), np.empty_like(first)
    keeps, ends = len(stored) > 0, len(ended) > 0
    firsts, vectors, time = first.reshape(1, size), by_row(stored), stored.shape[1]
    for g in range(count if len(carried) else 0):
        row = order[g]
        low[g], dead[g] = _take_logs(carried[row], current[g], kept[g], small)
        if dead[g] and lengths[row] > 0:
            total[row] = -np.inf
        if keeps:
            copy(kept[g], stored[row, 0])
        if ends and lengths[row] == 0:
            copy(carried[row], ended[row])
    alive = count
    for t in range(lengths[order[0]] if count else 0):
        while lengths[order[alive - 1]] <= t:
            alive -= 1
        if _any_moves(rows, order, alive, t):
            multiply(current, alive, probs, moved)
        for g in range(alive):
            row = order[g]
            word = ids[row, t]
            if not dead[g]:
                anew = is_new(rows, row, t)
                if anew:
                    copy_row(firsts, 0, moved, g)
                mass, least = _weigh(moved, g, emitted, word, new)
                if least >= small:
                    _divide(new, g, mass)
                    low[g] = False
                    if keeps:
                        copy_row(new, g, vectors, row * time + t + 1)
                    if mass < UNDERFLOW:
                        total[row] += math.log(mass)
                    else:
                        scale[g] *= mass
                else:
                    if anew:
                        copy(log_first, log_moved)
                    else:
                        _repair(
                            (current[g], kept[g], low[g]),
                            moved[g],
                            log_moves,
                            trusted,
                            small,
                            logs,
                            log_moved,
                        )
                    gained, low[g] = _weigh_logs(
                        moved[g], log_moved, log_emitted[word], mass, small, new[g], kept[g]
                    )
                    total[row] += gained
                    dead[g] = gained == -np.inf
                    if keeps:
                        copy_row(kept, g, vectors, row * time + t + 1)
                total[row] += peaks[word]
                if scale[g] < UNDERFLOW:
                    total[row] += math.log(scale[g])
                    scale[g] = 1.0
            if dead[g]:
                fill(new[g], 0.0)
            if t == lengths[row] - 1:
                total[row] += math.log(scale[g])
                if ends:
                    _as_logs(new[g], kept[g], low[g], ended[row])
        current, new = new, current


@jit()
def backward(
    rows, order, matrix, words, small, safe, stored, total, marginals, counts
):  # fmt: skip
    """What follows each position of the rows `order`, put together with what `forward` stored.

    matrix: p(j | i) with j as its rows, log p with i as its rows, and as for `forward`.
    safe: sums s_t below this are done in log space.
    marginals (B, T, Z): p(z_t | x), zero in the padding and where p(x) is zero; empty: not asked.
    counts: u_t / s_t-1 (B, T + 1, Z), zero where no move is counted; expected starts (Z,), moves
    (Z, Z) of the positions that had to be done in log space, and emissions (U, Z). If these are
    asked for, what `forward` stored becomes probabilities throughout. Empty: not asked.
    """
    ids, lengths, _, _ = rows
    probs, log_moves, trusted = matrix
    emitted, log_emitted, _ = words
    targets, starts, moves, emissions = counts
    count, size = len(order), probs.shape[0]
    current, moved = np.empty((count, size), probs.dtype), np.empty((count, size), probs.dtype)
    new, kept = np.empty((count, size), probs.dtype), np.zeros((count, size), probs.dtype)
    low = np.zeros(count, np.bool_)
    log_moved, logs = np.empty_like(probs[0]), np.empty_like(probs[0])
    log_source, log_target = np.empty_like(probs[0]), np.empty_like(probs[0])
    share = np.empty((1, size), probs.dtype)
    smooths, counts_them = len(marginals) > 0, len(targets) > 0
    vectors, time = by_row(stored), stored.shape[1]
    shares, entered = by_row(marginals), by_row(targets)
    alive = 0
    for t in range(lengths[order[0]] - 1 if count else -2, -2, -1):
        before = alive
        while alive < count and lengths[order[alive]] > t and lengths[order[alive]] > 0:
            alive += 1
        if before and _any_moves(rows, order, before, t + 1):
            multiply(current, before, probs, moved)
        for g in range(alive):
            row = order[g]
            if total[row] == -np.inf:
                fill(current[g], 0.0)
                fill(new[g], 0.0)
                continue
            moves_on = g < before and not is_new(rows, row, t + 1)
            if t < 0 and not moves_on:
                continue
            ready = True  # nothing has been done in log space
            if not moves_on:
                fill(moved[g], 1.0)
            place = row * time + t + 1
            mass = _dot(vectors, place, moved, g)
            if mass >= safe:
                _share(vectors, place, moved, g, mass, share)
            else:
                ready = False
                if moves_on:
                    _repair(
                        (current[g], kept[g], low[g]),
                        moved[g],
                        log_moves,
                        trusted,
                        small,
                        logs,
                        log_moved,
                    )
                    _as_logs(current[g], kept[g], low[g], log_target)
                _as_logs(stored[row, t + 1], stored[row, t + 1], True, log_source)
                log_mass = _share_logs(log_source, moved[g], log_moved, small, share[0])
            if counts_them and moves_on:
                if ready:
                    _divide_into(current, g, mass, entered, place)
                else:
                    _add_moves(log_source, log_moves, log_target, log_mass, moves)
            if t < 0:
                if counts_them:
                    _positive(vectors, place)
                continue
            word = ids[row, t]
            if smooths:
                copy_row(share, 0, shares, row * (time - 1) + t)
            if counts_them:
                _positive(vectors, place)
                _add(share, emissions, word)
                if is_new(rows, row, t):
                    _add(share, starts.reshape(1, size), 0)
            mass, least = _weigh(moved, g, emitted, word, new)
            if least >= small:
                _divide(new, g, mass)
                low[g] = False
            else:
                if ready and moves_on:
                    _repair(
                        (current[g], kept[g], low[g]),
                        moved[g],
                        log_moves,
                        trusted,
                        small,
                        logs,
                        log_moved,
                    )
                _, low[g] = _weigh_logs(
                    moved[g], log_moved, log_emitted[word], mass, small, new[g], kept[g]
                )
        current, new = new, current


@jit("contract")
def multiply(left, rows, matrix, out):
    """out = left · matrix, for the first `rows` rows."""
    height, width = matrix.shape
    for first in range(0, width, PANEL):
        last = min(first + PANEL, width)
        for g in range(rows):
            fill(out[g, first:last], 0.0)
        i = 0
        while i + 8 <= height:
            m0, m1 = matrix[i, first:last], matrix[i + 1, first:last]
            m2, m3 = matrix[i + 2, first:last], matrix[i + 3, first:last]
            m4, m5 = matrix[i + 4, first:last], matrix[i + 5, first:last]
            m6, m7 = matrix[i + 6, first:last], matrix[i + 7, first:last]
            for g in range(rows):
                a0, a1, a2, a3 = left[g, i], left[g, i + 1], left[g, i + 2], left[g, i + 3]
                a4, a5, a6, a7 = left[g, i + 4], left[g, i + 5], left[g, i + 6], left[g, i + 7]
                sums = out[g, first:last]
                for j in range(last - first):
                    sums[j] += (a0 * m0[j] + a1 * m1[j] + a2 * m2[j] + a3 * m3[j]) + (
                        a4 * m4[j] + a5 * m5[j] + a6 * m6[j] + a7 * m7[j]
                    )
            i += 8
        while i < height:
            m0 = matrix[i, first:last]
            for g in range(rows):
                a0, sums = left[g, i], out[g, first:last]
                for j in range(last - first):
                    sums[j] += a0 * m0[j]
            i += 1


@jit()
def copy(vector, out):
    for j in range(len(vector)):
        out[j] = vector[j]


@jit()
def fill(vector, value):
    for j in range(len(vector)):
        vector[j] = value


@jit()
def by_row(array):
    """An array (B, T, Z) as (B · T, Z)."""
    return array.reshape(array.shape[0] * array.shape[1], array.shape[2])


@jit()
def copy_row(table, row, out, place):
    for j in range(out.shape[1]):
        out[place, j] = table[row, j]


@jit("contract", "reassoc", "nsz", "nnan")
def _weigh(moved, row, emitted, word, new):
    """new = moved · emitted for each state of a row; its sum and its least number."""
    total, least = moved[row, 0] * 0, moved[row, 0] * 0 + 2
    for j in range(moved.shape[1]):
        value = moved[row, j] * emitted[word, j]
        new[row, j] = value
        total += value
        least = min(least, value)
    return total, least


@jit("contract", "reassoc", "nsz", "nnan")
def _dot(stored, place, moved, row):
    """Σ_j stored_j · moved_j, without those that are stored as logarithms."""
    zero = moved.dtype.type(0)
    total = zero
    for j in range(moved.shape[1]):
        total += max(stored[place, j], zero) * moved[row, j]
    return total


@jit("contract")
def _share(stored, place, moved, row, mass, share):
    scale, zero = 1 / mass, moved.dtype.type(0)
    for j in range(moved.shape[1]):
        share[0, j] = max(stored[place, j], zero) * moved[row, j] * scale


@jit("contract")
def _divide(table, row, mass):
    scale = 1 / mass
    for j in range(table.shape[1]):
        table[row, j] *= scale


@jit("contract")
def _divide_into(table, row, mass, out, place):
    scale = 1 / mass
    for j in range(table.shape[1]):
        out[place, j] = table[row, j] * scale


@jit("contract")
def _add(vector, totals, row):
    """Add a vector (1, Z) to a row."""
    for j in range(totals.shape[1]):
        totals[row, j] += vector[0, j]


@jit()
def _positive(stored, place):
    """Logarithms in a stored vector become 0: they are of numbers too small to count."""
    zero = stored.dtype.type(0)
    for j in range(stored.shape[1]):
        stored[place, j] = max(stored[place, j], zero)


@jit()
def is_new(rows, row, t):
    """Whether the state at t is drawn from the start distribution."""
    ids, _, fresh, end = rows
    if t > 0:
        return ids[row, t - 1] == end
    return len(fresh) == 0 or fresh[row]


@jit()
def _any_moves(rows, order, count, t):
    """Whether any of the first rows moves to position t, and is not drawn anew there."""
    found = False
    for g in range(count):
        found = found or not is_new(rows, order[g], t)
    return found


@jit()
def _take_logs(log_probs, current, kept, small):
    """From logarithms to a vector as it is multiplied and as it is stored.

    Returns whether any is stored as a logarithm, and whether all are -inf.
    """
    low, dead = False, True
    for j in range(len(log_probs)):
        value = log_probs[j]
        current[j] = math.exp(value)
        kept[j] = current[j]
        if value > -np.inf:
            dead = False
            if current[j] < small:
                kept[j], low = value, True
    return low, dead


@jit()
def _as_logs(current, kept, low, logs):
    """The logarithms of a vector."""
    for j in range(len(current)):
        value = kept[j] if low else current[j]
        logs[j] = value if value < 0 else math.log(value)


@jit()
def _repair(vector, moved, log_moves, trusted, small, logs, log_moved):
    """log_moved = log Σ_i vector_i p(j | i) for those j where `moved` is below `small`.

    vector: as it is multiplied and as it is kept, and whether the latter has logarithms.
    """
    current, kept, low = vector
    ready, certain = False, trusted and not low  # no product was lost: `moved` is right as it is
    for j in range(len(moved)):
        if moved[j] < small:
            if certain:
                log_moved[j] = math.log(moved[j])
                continue
            if not ready:
                _as_logs(current, kept, low, logs)
                ready = True
            log_moved[j] = _log_sum(logs, log_moves[j])


@jit()
def _log_sum(logs, more):
    """log Σ_i exp(logs_i + more_i)."""
    top = -np.inf
    for i in range(len(logs)):
        top = max(top, logs[i] + more[i])
    if top == -np.inf:
        return top
    total = 0.0
    for i in range(len(logs)):
        total += math.exp(logs[i] + more[i] - top)
    return top + math.log(total)


@jit()
def _weigh_logs(moved, log_moved, log_emitted, mass, small, new, kept):
    """As `_weigh`, and then divided by the sum, where some numbers are low.

    Returns the logarithm of the sum, and whether any state is kept as a logarithm.
    """
    size, low = len(moved), False
    if mass >= small:
        gained, scale = math.log(mass), 1 / mass
        for j in range(size):
            value, log_value = new[j] * scale, -np.inf
            if new[j] < small:
                if log_emitted[j] > -np.inf:
                    of_move = math.log(moved[j]) if moved[j] >= small else log_moved[j]
                    log_value = of_move + log_emitted[j] - gained
                value = math.exp(log_value)
            new[j] = kept[j] = value
            if value < small and log_value > -np.inf:
                kept[j], low = log_value, True
        return gained, low
    top = -np.inf
    for j in range(size):
        of_move = math.log(moved[j]) if moved[j] >= small else log_moved[j]
        kept[j] = of_move + log_emitted[j]
        top = max(top, kept[j])
    if top == -np.inf:
        fill(kept, 0.0)
        fill(new, 0.0)
        return top, False
    total = 0.0
    for j in range(size):
        total += math.exp(kept[j] - top)
    gained = top + math.log(total)
    for j in range(size):
        log_value = kept[j] - gained
        new[j] = math.exp(log_value)
        if new[j] >= small:
            kept[j] = new[j]
        elif log_value > -np.inf:
            kept[j], low = log_value, True
        else:
            kept[j] = 0.0
    return gained, low


@jit()
def _share_logs(log_source, moved, log_moved, small, share):
    """As `_share`, in log space; returns the logarithm of the sum."""
    top = -np.inf
    for j in range(len(moved)):
        of_move = math.log(moved[j]) if moved[j] >= small else log_moved[j]
        share[j] = log_source[j] + of_move
        top = max(top, share[j])
    total = 0.0
    for j in range(len(moved)):
        total += math.exp(share[j] - top)
    log_mass = top + math.log(total)
    for j in range(len(moved)):
        share[j] = math.exp(share[j] - log_mass)
    return log_mass


@jit()
def _add_moves(log_source, log_moves, log_target, log_mass, moves):
    """Expected moves of one position."""
    for i in range(len(log_source)):
        for j in range(len(log_target)):
            moves[i, j] += math.exp(log_source[i] + log_moves[i, j] + log_target[j] - log_mass)
