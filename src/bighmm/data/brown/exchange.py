"""The exchange of Brown clustering: sweeps in which each word moves to its best class."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from bighmm.data.brown.bigrams import Bigrams, XLogX


def exchange_words(
    bigrams: Bigrams, class_of: np.ndarray, classes: int, tick: Callable[[], None]
) -> int:
    """Move each word to the class of the highest AMI, in place; return how many words moved.

    class_of: the class (V,) of each word. The last word of a class stays.
    tick: called once per word.
    """
    counts = ClassCounts(bigrams, class_of, classes)
    members = np.bincount(class_of)
    moved = 0
    for word, old in enumerate(class_of.tolist()):
        tick()
        if members[old] == 1:
            continue
        class_of[word] = classes  # no class, so that its pairs with itself are not counted
        pairs = WordPairs(bigrams, word, class_of, classes)
        counts.add(pairs, old, -1)
        score = counts.scores(pairs)
        new = int(np.argmax(score))
        if score[new] <= score[old] + bigrams.tolerance:
            new = old
        counts.add(pairs, new)
        class_of[word] = new
        members[old] -= 1
        members[new] += 1
        moved += new != old
    return moved


class WordPairs:
    """The pairs of a word that is in no class: x_k to class k, y_k from class k, z with itself."""

    def __init__(self, bigrams: Bigrams, word: int, class_of: np.ndarray, classes: int) -> None:
        self.to, self.fro = bigrams.with_slots(word, class_of, classes)  # x and y (C,)
        self.marginals = bigrams.marginals[:, word]
        self.same = int(self.marginals[0] - self.to.sum())  # z
        both = np.concatenate([self.to, self.fro])
        self.neighbours = both.nonzero()[0]
        self.counts = both[self.neighbours]


class ClassCounts:
    """The counts n_ij, l_i and r_j of the classes, while words move."""

    def __init__(self, bigrams: Bigrams, class_of: np.ndarray, classes: int) -> None:
        n, self.marginals = bigrams.of_classes(class_of, classes)
        self.n = np.concatenate([n.T, n])  # (2C, C): the counts with one neighbour are contiguous
        self.f: XLogX = bigrams.f

    def add(self, word: WordPairs, c: int, times: int = 1) -> None:
        """Add a word to class c, or remove it with `times` = -1."""
        before, after = c, c + self.n.shape[1]  # rows of the pairs to c and from c
        self.n[word.neighbours, c] += times * word.counts
        self.n[before] += times * word.fro
        self.n[after] += times * word.to
        if word.same:
            self.n[(before, after), c] += times * word.same
        self.marginals[:, c] += times * word.marginals

    def scores(self, word: WordPairs) -> np.ndarray:
        """What N·I grows by, up to a constant, if the word is added to each class d: (C,).

        Σ_k≠d [f(n_dk + x_k) - f(n_dk) + f(n_kd + y_k) - f(n_kd)] + f(n_dd + x_d + y_d + z)
        - f(n_dd) - f(l_d + l_w) + f(l_d) - f(r_d + r_w) + f(r_d)
        """
        f, marginals = self.f, self.marginals
        score = (f(marginals) - f(marginals + word.marginals[:, None])).sum(0)
        score += f.growth(self.n, word.neighbours, word.counts)
        # n_dd is in both sums, and must be counted once with x, y and z.
        inner = self.n[: len(score)].diagonal()
        once = f(np.array([inner + word.to + word.fro + word.same, inner]))
        score += (once - f(np.array([inner + word.to, inner + word.fro]))).sum(0)
        return score
