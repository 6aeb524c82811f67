"""The window of Brown clustering: up to W classes, and the loss of merging each pair of them.

The loss N·(I before - I after) of merging a and b, over the pairs of words in the window, has a
part of the joint counts and a part of the marginals:

    joint     =  Σ_ij f(n_ij) before - Σ_ij f(n_ij) after
    marginal  =  (l'_a + l'_b) log(l_a + l_b) - l'_a log l_a - l'_b log l_b, and likewise for r

where l' counts the pairs inside the window and l counts all pairs. A third class k adds
g(n_ak, n_bk) + g(n_ka, n_kb) to the joint part, where g(x, y) = f(x) + f(y) - f(x + y). This is
zero unless both counts are positive, so an update for a rare word, as most words are, changes few
entries. With K neighbours of the word, an insertion or a merge costs O(K·W).
"""

from __future__ import annotations

import numpy as np

from bighmm.data.brown.bigrams import XLogX


class Window:
    """Classes in W slots, with the loss of merging each pair kept up to date."""

    def __init__(self, slots: int, f: XLogX) -> None:
        self.f = f
        # n_ak at [0, k, a] and n_ka at [1, k, a]: the counts with one neighbour are contiguous.
        self.n = np.zeros((2, slots, slots), np.int64)
        self.marginals = np.zeros((2, slots), np.int64)  # l and r
        self.inside = np.zeros((2, slots), np.int64)  # l' and r'
        self.loss = np.full((slots, slots), np.inf)  # symmetric; inf where there is no pair
        self.used = np.zeros(slots, bool)
        # At the next search, `least` of the changed rows is computed anew. The loss of each pair is
        # then at least the smaller of its two entries, which may be too low.
        self.least = np.full(slots, np.inf)
        self.changed = np.zeros(slots, bool)

    @staticmethod
    def of(n: np.ndarray, marginals: np.ndarray, slots: int, f: XLogX) -> Window:
        """A window with the classes of the counts n (C, C) and l and r (2, C) in its first slots.

        It equals a window in which they were inserted one by one, up to rounding, and takes less
        time.
        """
        window, classes = Window(slots, f), len(n)
        window.n[0, :classes, :classes], window.n[1, :classes, :classes] = n.T, n
        window.marginals[:, :classes] = marginals
        window.inside[:, :classes] = n.sum(1), n.sum(0)
        window.used[:classes] = window.changed[:classes] = True
        window.loss[:classes, :classes] = 0
        for counts in window.n[:, :classes].reshape(-1, slots):  # with one class k each
            neighbours = counts.nonzero()[0]
            window.loss[np.ix_(neighbours, neighbours)] += _shared(f, counts[neighbours])
        for s in range(classes):
            row = window.loss[s] + window._correction(s) + window._marginal_part(s)
            window.loss[s, s + 1 : classes] = row[s + 1 : classes]
            window.loss[s + 1 : classes, s] = row[s + 1 : classes]
        np.fill_diagonal(window.loss, np.inf)
        return window

    def insert(self, s: int, row: np.ndarray, column: np.ndarray, marginals: np.ndarray) -> None:
        """Put a class into the free slot s; `row` and `column` (W,) are its n_sk and n_ks."""
        f, own = self.f, np.array([row, column])
        self.n[0, s], self.n[1, s], self.n[:, :, s] = column, row, own
        self.marginals[:, s] = marginals
        self.used[s] = True
        for side, counts in enumerate(own):
            # The pairs are inside the window now, and the new class is a third class k.
            neighbours, margins = counts.nonzero()[0], self.marginals[1 - side]
            counts = counts[neighbours]
            self.inside[1 - side, neighbours] += counts
            change = f.log(margins[neighbours, None] + margins)
            change -= f.log(margins[neighbours])[:, None]
            change *= counts[:, None]
            block = self.loss.take(neighbours, 0)
            block += change
            block[:, neighbours] += change[:, neighbours].T + _shared(f, counts)
            self.loss[neighbours] = block
            self.loss[:, neighbours] = block.T
            self.changed[neighbours] = True
        self.inside[:, s] = own.sum(1)
        joint = self._growth(own.ravel()) + self._correction(s)
        self._set_slot(s, joint)

    def merge(self, i: int, j: int) -> None:
        """Merge the class in slot j into the class in slot i; slot j becomes free.

        The cost grows with the number of neighbours of j, so j should be the rarer class.
        """
        n, f = self.n, self.f
        joint = -self._correction(i) - self._marginal_part(i)  # what is added to the part of i
        for counts in n:
            # The pairs of any two classes, for which the union is the third class k.
            parts = counts.take((i, j), 0)
            (one, other), both = parts, parts.sum(0)
            near, wide = other.nonzero()[0], _columns(both)
            own, first, second = other[near], one[near], both[near]
            block = self.loss.take(near, 0)
            change = f(first[:, None] + one[wide]) - f(second[:, None] + both[wide])
            rise = f(second) - f(first)
            change += rise[:, None]
            block[:, wide] += change  # all of it, unless b is a neighbour of j too
            alone = f(own)
            block[:, near] += f(own[:, None] + own) - alone[:, None] + (rise - alone)
            self.loss[near] = block
            self.loss[:, near] = block.T
            self.changed[near] = True
            counts[i], counts[j] = both, 0
        # The pairs of the union and another class. Counts of i change only where j has some.
        joint += self._growth(n[:, :, j].ravel(), n[:, :, i].ravel())
        n[:, :, i] += n[:, :, j]
        n[:, :, j] = 0
        for counts in (self.marginals, self.inside):
            counts[:, i] += counts[:, j]
        self.inside[:, j] = 0
        self.used[j] = False
        self.loss[j] = self.loss[:, j] = self.least[j] = np.inf
        self._set_slot(i, self.loss[i] + joint + self._correction(i))

    def merge_best(self, tolerance: float) -> tuple[int, int]:
        """Merge the pair of least loss; return the slot of the union and the slot that became free.

        Losses that differ by less than `tolerance` count as equal, and the first of them is taken.
        So the result does not depend on the order in which a processor adds. The union stays in the
        slot of the more frequent class, or in the lower slot if both are equally frequent.
        """
        pair = self._best_pair(tolerance)
        union, freed = sorted(pair, key=lambda s: (-int(self.marginals[:, s].sum()), s))
        self.merge(union, freed)
        return union, freed

    def compact(self) -> np.ndarray:
        """Remove the free slots; return the former slots of the classes, in their order."""
        kept = np.flatnonzero(self.used)
        square = np.ix_(kept, kept)
        # An index of several axes may give an array of another order, which `take` would copy.
        self.n = np.array([counts[square] for counts in self.n])
        self.loss = np.ascontiguousarray(self.loss[square])
        self.marginals, self.inside = self.marginals[:, kept], self.inside[:, kept]
        self.used, self.least, self.changed = self.used[kept], self.least[kept], self.changed[kept]
        return kept

    def _best_pair(self, tolerance: float) -> tuple[int, int]:
        """The first pair whose loss is the least one, or above it by at most `tolerance`."""
        exact, self.changed = self.changed, np.zeros_like(self.changed)
        rows = exact.nonzero()[0]
        while len(rows):
            self.least[rows] = self.loss.take(rows, 0).min(1)
            exact[rows] = True
            close = self.least <= self.least.min() + tolerance
            rows = (close & ~exact).nonzero()[0]
        rows = close.nonzero()[0]
        a, b = (self.loss.take(rows, 0) <= self.least.min() + tolerance).nonzero()
        a = rows[a]
        return min(zip(np.minimum(a, b).tolist(), np.maximum(a, b).tolist(), strict=True))

    def _growth(self, added: np.ndarray, base: np.ndarray | None = None) -> np.ndarray:
        """What the terms g of each class (W,) and a class of `base` grow by, if it gets `added`.

        Both are (2W,), the counts with each neighbour as in n; without `base` it is 0.
        """
        f, rows = self.f, added.nonzero()[0]
        added = added[rows]
        if base is None:
            alone = f(added).sum()
        else:
            base = base[rows]
            alone = (f(base + added) - f(base)).sum()
        return alone - f.growth(self.n.reshape(-1, len(self.used)), rows, added, base)

    def _correction(self, s: int) -> np.ndarray:
        """The joint part of the losses (W,) of slot s minus the sum of the terms g over all k.

        The sum is not right for k = a and k = s, the two classes that are merged themselves.
        """
        own, to, fro = self.n[0].diagonal(), self.n[0, s], self.n[1, s]
        same = own[s]
        plus = np.array([own + fro, own + to, to + same, fro + same])
        minus = np.array([own, to, fro, own + to + fro + same])
        return (self.f(plus) - self.f(minus)).sum(0) - self.f(same)

    def _marginal_part(self, s: int) -> np.ndarray:
        """The part of the marginals in the losses (W,) of slot s."""
        inside, logs = self.inside, self.f.log(self.marginals)
        sums = self.f.log(self.marginals + self.marginals[:, s, None])
        part = (inside + inside[:, s, None]) * sums - inside * logs
        return part.sum(0) - (inside[:, s] * logs[:, s]).sum()

    def _set_slot(self, s: int, joint: np.ndarray) -> None:
        """Store the losses (W,) of slot s with each other slot, given their joint part."""
        loss = joint + self._marginal_part(s)
        loss[~self.used] = np.inf
        loss[s] = np.inf
        self.loss[s] = self.loss[:, s] = loss
        self.changed[s] = True


def _shared(f: XLogX, counts: np.ndarray) -> np.ndarray:
    """g (K, K) of each pair of counts (K,)."""
    alone = f(counts)
    return alone[:, None] + alone - f(counts[:, None] + counts)


def _columns(counts: np.ndarray) -> np.ndarray | slice:
    """An index of the positive counts (W,), or of all: rows are added faster than columns."""
    positive = counts.nonzero()[0]
    return positive if 4 * len(positive) < len(counts) else slice(None)
