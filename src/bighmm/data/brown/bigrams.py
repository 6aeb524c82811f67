"""Counts of adjacent words, and the mutual information between them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from bighmm.data.counting import count_pairs

LARGEST_TABLE = 1 << 22  # entries of a table of x log x
CHUNK = 1 << 14  # entries that `growth` takes at a time, so that they stay in the processor's cache


def average_mutual_information(tokens: np.ndarray, classes: np.ndarray) -> float:
    """Σ p(c, c') log p(c, c') / (p(c) p(c')) in nats over the adjacent pairs of `tokens` (T,).

    `classes` (V,) is the class of each type; p(c) and p(c') are the marginals of the left and of
    the right positions. The result is 0 for fewer than two tokens.
    """
    classes, tokens = np.asarray(classes), np.asarray(tokens)
    size = int(classes.max()) + 1
    pairs, counts = count_pairs(tokens, size, classes)
    return _information(counts, [np.bincount(side, counts) for side in np.divmod(pairs, size)])


@dataclass(frozen=True)
class Bigrams:
    """Counts of adjacent pairs, by left word and by right word, as compressed sparse rows."""

    after: tuple[np.ndarray, np.ndarray, np.ndarray]  # starts (V + 1,), right words, counts
    before: tuple[np.ndarray, np.ndarray, np.ndarray]  # starts (V + 1,), left words, counts
    marginals: np.ndarray  # (2, V) l and r of each word
    f: XLogX
    tolerance: float  # rounding error of losses and scores

    @staticmethod
    def of(pairs: np.ndarray, counts: np.ndarray, size: int) -> Bigrams:
        """From the pairs a·size + b (P,) of words 0..size-1, in any order, and their counts."""
        order = np.argsort(pairs)
        counts = counts[order]
        first, second = np.divmod(pairs[order], size)
        by_second = np.argsort(second, kind="stable")
        words, total = np.arange(size + 1), int(counts.sum())
        marginals = [np.bincount(side, counts, size) for side in (first, second)]
        return Bigrams(
            after=(np.searchsorted(first, words), second, counts),
            before=(
                np.searchsorted(second[by_second], words),
                first[by_second],
                counts[by_second],
            ),
            marginals=np.stack(marginals).astype(np.int64),
            f=XLogX(total),
            tolerance=1e-13 * float(xlogx(np.array(total + 1))),
        )

    def with_slots(self, word: int, slot: np.ndarray, slots: int) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of pairs from `word` to each slot, and from each slot to `word`: (W,) each.

        `slot` (V,) is the slot of each word, or W for words without a slot.
        """
        rows = []
        for starts, others, counts in (self.after, self.before):
            span = slice(starts[word], starts[word + 1])
            row = np.bincount(slot[others[span]], counts[span], slots + 1)
            rows.append(row[:slots].astype(np.int64))
        return rows[0], rows[1]

    def of_classes(self, class_of: np.ndarray, classes: int) -> tuple[np.ndarray, np.ndarray]:
        """n (C, C), and l and r (2, C), where `class_of` (V,) is the class of each word."""
        starts, second, counts = self.after
        pairs = np.repeat(class_of, np.diff(starts)) * classes + class_of[second]
        n = np.bincount(pairs, counts, classes**2).reshape(classes, classes)
        marginals = np.stack([np.bincount(class_of, words, classes) for words in self.marginals])
        return n.astype(np.int64), marginals.astype(np.int64)

    def information(self, class_of: np.ndarray, classes: int) -> float:
        """The AMI of a partition; equals `average_mutual_information` of the text."""
        n, marginals = self.of_classes(class_of, classes)
        return _information(n.ravel(), marginals)


def xlogx(counts: np.ndarray) -> np.ndarray:
    """x log x of each count, 0 for 0."""
    return counts * np.log(np.maximum(counts, 1))


def _information(joint: np.ndarray, marginals: Iterable[np.ndarray]) -> float:
    """The AMI from the counts of pairs and those of their left and of their right sides."""
    total = int(joint.sum())
    if not total:
        return 0.0
    # Zeros are left out because they would change how the sums are rounded.
    inner, left, right = (float(xlogx(c[c > 0]).sum()) for c in (joint, *marginals))
    return (inner - left - right) / total + float(np.log(total))


class XLogX:
    """f(x) = x log x of counts up to `largest`, and log x, from tables: faster than the logarithm.

    Larger counts may be clipped. They occur only for a class that is paired with itself, and such
    an entry is never used. The logarithm of 0 is taken as 0.
    """

    def __init__(self, largest: int) -> None:
        self.complete = largest < LARGEST_TABLE
        counts = np.arange(min(largest, LARGEST_TABLE) + 1)
        self.values, self.logs = xlogx(counts), np.log(np.maximum(counts, 1))
        self.rises = np.diff(self.values, append=0)

    def __call__(self, counts: np.ndarray) -> np.ndarray:
        """f of each count."""
        if self._fit(counts):
            return self.values.take(counts, mode="clip")
        return xlogx(counts)

    def log(self, counts: np.ndarray) -> np.ndarray:
        """The logarithm of each count."""
        if self._fit(counts):
            return self.logs.take(counts, mode="clip")
        return np.log(np.maximum(counts, 1))

    def growth(
        self,
        counts: np.ndarray,
        rows: np.ndarray,
        added: np.ndarray,
        base: np.ndarray | None = None,
    ) -> np.ndarray:
        """Σ_k f(counts[k] + base_k + added_k) - f(counts[k] + base_k) over K rows k: (W,).

        `counts` has rows (W,); `added` and `base` are (K,). Without `base` it is 0.
        """
        width, total = counts.shape[1], np.zeros(counts.shape[1])
        step = max(1, CHUNK // width)
        if len(rows) > step:  # most counts are added once, which takes one lookup instead of two
            order = np.argsort(added)
            rows, added, base = rows[order], added[order], base if base is None else base[order]
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            more, others = added[part, None], counts.take(rows[part], 0)
            if base is not None:
                others += base[part, None]
            if more[-1] == 1 and more.max() == 1 and self._fit(others):
                total += self.rises.take(others, mode="clip").sum(0)
                continue
            before = self(others)
            others += more
            total += (self(others) - before).sum(0)
        return total

    def _fit(self, counts: np.ndarray) -> bool:
        return self.complete or counts.max(initial=0) < LARGEST_TABLE
