"""The window of Brown clustering: up to W classes, and the loss of merging each pair of them.

The loss N·(I before - I after) of merging a and b, over the pairs of words in the window, has a
part of the joint counts and a part of the marginals:

    joint_loss[a, b]  =  Σ_ij f(n_ij) before - Σ_ij f(n_ij) after
    for l, and likewise for r:  (l'_a + l'_b) log(l_a + l_b) - l'_a log l_a - l'_b log l_b

where l' counts the pairs inside the window and l counts all pairs. A third class k adds
g(n_ak, n_bk) + g(n_ka, n_kb) to joint_loss[a, b], where g(x, y) = f(x) + f(y) - f(x + y). This is
zero unless both counts are positive, so an update for a rare word, as most words are, changes few
entries.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np


class Window:
    """Classes in W slots, with the loss of merging each pair kept up to date."""

    def __init__(self, slots: int, f: Callable[[np.ndarray], np.ndarray]) -> None:
        self.f = f  # x log x
        self.n = np.zeros((slots, slots), np.int64)
        self.marginals = np.zeros((2, slots), np.int64)  # l and r
        self.logs = np.zeros((2, slots, slots))  # log(l_a + l_b), diagonal log l_a; then of r
        self.joint_loss = np.full((slots, slots), np.inf)  # symmetric; inf where there is no pair
        self.used = np.zeros(slots, bool)
        self.scratch = np.empty((2, slots, slots))

    def insert(self, s: int, row: np.ndarray, column: np.ndarray, marginals: np.ndarray) -> None:
        """Put a class into the free slot s; `row` and `column` (W,) are its n_sk and n_ks."""
        n, f = self.n, self.f
        n[s], n[:, s] = row, column
        self.marginals[:, s] = marginals
        self.used[s] = True
        joint_loss = np.zeros(len(n))
        for counts in (n, n.T):
            neighbours = np.flatnonzero(counts[s])
            own, others = counts[s, neighbours], counts.T[neighbours]
            f_own = f(own)
            self.joint_loss[np.ix_(neighbours, neighbours)] += (
                f_own[:, None] + f_own - f(own[:, None] + own)
            )
            joint_loss += (f(others) - f(others + own[:, None])).sum(0) + f_own.sum()
        self._set_slot(s, joint_loss + self._correction(s))

    def losses(self) -> np.ndarray:
        """The loss (W, W) of merging each pair, inf where there is no pair.

        The result is overwritten by the next call.
        """
        loss, term = self.scratch  # allocating arrays of this size would cost more than the sums
        loss[:] = self.joint_loss
        before = np.zeros(len(loss))
        for axis, logs in ((1, self.logs[0]), (0, self.logs[1])):
            inside = self.n.sum(axis)
            np.add(inside[:, None], inside, out=term)
            term *= logs
            loss += term
            before += inside * logs.diagonal()
        loss -= before[:, None]
        loss -= before
        return loss

    def merge(self, i: int, j: int) -> None:
        """Merge the class in slot j into the class in slot i; slot j becomes free.

        The cost grows with the number of neighbours of j, so j should be the rarer class.
        """
        n, f = self.n, self.f
        change = -self._correction(i)
        for counts in (n, n.T):
            one, other = counts[i], counts[j]
            neighbours, both = np.flatnonzero(other), one + other
            # The pairs of two other classes, for which the union is the third class k.
            alone = f(both) - f(one) - f(other)
            block = self.joint_loss[neighbours]
            block += alone[neighbours, None] + alone - f(both[neighbours, None] + both)
            block += f(one[neighbours, None] + one) + f(other[neighbours, None] + other)
            self.joint_loss[neighbours] = block
            self.joint_loss[:, neighbours] = block.T
            # The pairs of the union and another class. Counts of i change only where j has some.
            old, new, others = one[neighbours], both[neighbours], counts.T[neighbours]
            change += (f(others + old[:, None]) - f(others + new[:, None])).sum(0)
            change += (f(new) - f(old)).sum()
            counts[i], counts[j] = both, 0
        self.marginals[:, i] += self.marginals[:, j]
        self.used[j] = False
        self.joint_loss[j] = self.joint_loss[:, j] = np.inf
        self._set_slot(i, self.joint_loss[i] + change + self._correction(i))

    def merge_best(self, tolerance: float) -> tuple[int, int]:
        """Merge the pair of least loss; return the slot of the union and the slot that became free.

        Losses that differ by less than `tolerance` count as equal, and the first of them is taken.
        So the result does not depend on the order in which a processor adds. The union stays in the
        slot of the more frequent class, or in the lower slot if both are equally frequent.
        """
        losses = self.losses()
        pair = divmod(int(np.argmax(losses <= losses.min() + tolerance)), len(losses))
        union, freed = sorted(pair, key=lambda s: (-int(self.marginals[:, s].sum()), s))
        self.merge(union, freed)
        return union, freed

    def _correction(self, s: int) -> np.ndarray:
        """joint_loss[a, s] (W,) minus the sum of the terms g over all classes k.

        The sum is not right for k = a and k = s, the two classes that are merged themselves.
        """
        f, own, to, fro, same = self.f, self.n.diagonal(), self.n[:, s], self.n[s], self.n[s, s]
        crossed = f(own + fro) + f(own + to) + f(to + same) + f(fro + same)
        return crossed - f(own) - f(to) - f(fro) - f(same) - f(own + to + fro + same)

    def _set_slot(self, s: int, joint_loss: np.ndarray) -> None:
        """Store the losses (W,) of slot s with each other slot, and the logs of the marginals."""
        joint_loss[~self.used] = np.inf
        joint_loss[s] = np.inf
        self.joint_loss[s] = self.joint_loss[:, s] = joint_loss
        sums = self.marginals + self.marginals[:, s, None]
        sums[:, s] = self.marginals[:, s]
        self.logs[:, s] = self.logs[:, :, s] = np.log(np.maximum(sums, 1))
