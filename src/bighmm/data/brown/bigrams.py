"""Counts of adjacent words, and the mutual information between them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

LARGEST_TABLE = 1 << 25  # entries of a table of x log x


def average_mutual_information(tokens: np.ndarray, classes: np.ndarray) -> float:
    """Σ p(c, c') log p(c, c') / (p(c) p(c')) in nats over the adjacent pairs of `tokens` (T,).

    `classes` (V,) is the class of each type; p(c) and p(c') are the marginals of the left and of
    the right positions. The result is 0 for fewer than two tokens.
    """
    stream = np.asarray(classes)[np.asarray(tokens)].astype(np.int64)
    if len(stream) < 2:
        return 0.0
    first, second = stream[:-1], stream[1:]
    joint = np.unique(first * (int(stream.max()) + 1) + second, return_counts=True)[1]
    inner, left, right = (
        float(xlogx(counts).sum()) for counts in (joint, np.bincount(first), np.bincount(second))
    )
    return (inner - left - right) / len(first) + float(np.log(len(first)))


@dataclass(frozen=True)
class Bigrams:
    """Counts of adjacent pairs, by left word and by right word, as compressed sparse rows."""

    after: tuple[np.ndarray, np.ndarray, np.ndarray]  # starts (V + 1,), right words, counts
    before: tuple[np.ndarray, np.ndarray, np.ndarray]  # starts (V + 1,), left words, counts
    marginals: np.ndarray  # (2, V) l and r of each word
    f: Callable[[np.ndarray], np.ndarray]  # x log x for counts up to N
    tolerance: float  # rounding error of losses and scores

    @staticmethod
    def of(stream: np.ndarray, size: int) -> Bigrams:
        """The counts of a stream (T,) of words 0..size-1."""
        keys, counts = np.unique(stream[:-1] * size + stream[1:], return_counts=True)
        first, second = np.divmod(keys, size)
        by_second = np.argsort(second, kind="stable")
        words = np.arange(size + 1)
        sides = (stream[:-1], stream[1:])
        return Bigrams(
            after=(np.searchsorted(first, words), second, counts),
            before=(
                np.searchsorted(second[by_second], words),
                first[by_second],
                counts[by_second],
            ),
            marginals=np.stack([np.bincount(side, minlength=size) for side in sides]),
            f=_xlogx_up_to(len(stream) - 1),
            tolerance=1e-13 * float(xlogx(np.array(len(stream)))),
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


def xlogx(counts: np.ndarray) -> np.ndarray:
    """x log x of each count, 0 for 0."""
    return counts * np.log(np.maximum(counts, 1))


def _xlogx_up_to(largest: int) -> Callable[[np.ndarray], np.ndarray]:
    """x log x for counts up to `largest`: a lookup in a table, which is faster than the logarithm.

    Larger counts are clipped. They occur only for a class that is paired with itself, and such an
    entry is never used.
    """
    if largest >= LARGEST_TABLE:
        return xlogx
    return partial(xlogx(np.arange(largest + 1)).take, mode="clip")
