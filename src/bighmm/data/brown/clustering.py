"""The algorithm of Brown clustering; the package's docstring has its steps and the letters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import count as numbers

import numpy as np

from bighmm.data.brown.bigrams import Bigrams
from bighmm.data.brown.exchange import exchange_words
from bighmm.data.brown.window import Window
from bighmm.data.counting import Counted, count

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Clusters:
    """A partition of V word types into C classes, numbered in the sorted order of their paths."""

    classes: np.ndarray  # (V,) int32, every class of 0..C-1 occurs
    paths: tuple[str, ...]  # C bit strings of the merge tree, none is a prefix of another
    information: float  # AMI in nats, nan if it is unknown


def cluster(
    tokens: np.ndarray,
    vocabulary_size: int,
    classes: int,
    *,
    exchange: int = 3,
    progress: Progress | None = None,
    counted: Counted | None = None,
) -> Clusters:
    """A partition of the word types 0..V-1 into `classes` classes of high AMI.

    tokens: one stream (T,); all T - 1 adjacent pairs count.
    exchange: the largest number of sweeps in which every word moves to the class that gives the
        highest AMI. They end early if no word moves.
    progress: called with the number of words processed, and of how many.
    counted: the counts of the stream, where they are known.

    Types that do not occur are distributed in the order of their ids, each to the class that has
    the fewest types then. The result is deterministic: words of equal frequency are taken in the
    order of their ids.

    Raises ValueError for an empty stream, ids outside 0..V-1, fewer than one class, more classes
    than types that occur, and a negative `exchange`.
    """
    tokens = np.asarray(tokens)
    _check_tokens(tokens, vocabulary_size)
    counted = count(tokens, vocabulary_size) if counted is None else counted
    frequency = counted.tokens
    occurring = int(np.count_nonzero(frequency))
    _check_numbers(classes, occurring, exchange)
    by_rank = np.argsort(-frequency, kind="stable")  # ids, the most frequent first
    rank = np.empty_like(by_rank)
    rank[by_rank] = np.arange(vocabulary_size)
    pairs, counts = counted.pairs, counted.times
    first, second = np.divmod(pairs, vocabulary_size)
    bigrams = Bigrams.of(rank[first] * occurring + rank[second], counts, occurring)
    del pairs, counts, counted, first, second
    total = occurring * (1 + exchange)
    tick = _ticker(progress, total)

    class_of = _agglomerate(bigrams, classes, tick)
    for _ in range(exchange):
        if not exchange_words(bigrams, class_of, classes, tick):
            break
    if progress is not None:
        progress(total, total)

    paths = _merge_paths(bigrams, class_of, classes)
    number = np.argsort(np.argsort(np.array(paths)))  # of each class among the sorted paths
    result = np.empty(vocabulary_size, np.int32)
    result[by_rank[:occurring]] = number[class_of]
    sizes = np.bincount(number[class_of])
    for unseen in by_rank[occurring:]:
        result[unseen] = smallest = np.argmin(sizes)
        sizes[smallest] += 1
    information = bigrams.information(number[class_of], classes)
    return Clusters(result, tuple(sorted(paths)), information)


def _agglomerate(bigrams: Bigrams, classes: int, tick: Callable[[], None]) -> np.ndarray:
    """The class (V,) of each word after step 1; words are numbered by decreasing frequency."""
    size, slots = bigrams.marginals.shape[1], classes + 1
    slot = np.minimum(np.arange(size), classes)
    n, marginals = bigrams.of_classes(slot, slots)
    n, marginals = n[:classes, :classes], marginals[:, :classes]
    window = Window.of(n, marginals, slots, bigrams.f)
    slot[classes:] = slots  # W marks words that are not in the window yet
    free = classes
    for word in range(classes, size):
        tick()
        slot[word] = free
        row, column = bigrams.with_slots(word, slot, slots)
        window.insert(free, row, column, bigrams.marginals[:, word])
        union, free = window.merge_best(bigrams.tolerance)
        placed = slot[: word + 1]
        placed[placed == free] = union
    slot[slot == classes] = free  # so that the classes are 0..C-1
    return slot


def _merge_paths(bigrams: Bigrams, class_of: np.ndarray, classes: int) -> list[str]:
    """The bit string of each class in the tree that merges all of them to one.

    At each merge the more frequent side gets the bit 0.
    """
    window = Window.of(*bigrams.of_classes(class_of, classes), classes, bigrams.f)
    below = [[c] for c in range(classes)]  # the classes below each slot
    paths = [""] * classes
    for left in range(classes - 1, 0, -1):
        union, freed = window.merge_best(bigrams.tolerance)
        for bit, side in (("0", below[union]), ("1", below[freed])):
            for c in side:
                paths[c] = bit + paths[c]
        below[union] += below[freed]
        if 8 * left <= 7 * len(below):
            below = [below[s] for s in window.compact()]
    return paths


def _ticker(progress: Progress | None, total: int) -> Callable[[], None]:
    """A function to call once per word, which reports every 256th call."""
    steps = numbers(1)

    def tick() -> None:
        done = next(steps)
        if progress is not None and done % 256 == 0:
            progress(done, total)

    return tick


def _check_tokens(tokens: np.ndarray, vocabulary_size: int) -> None:
    if tokens.size == 0:
        raise ValueError("tokens is empty: clustering needs at least one token")
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        given = f"shape {tokens.shape} and type {tokens.dtype}"
        raise ValueError(f"tokens has {given}: it must be a 1-D array of integers")
    for extreme in (tokens.min(), tokens.max()):
        if not 0 <= extreme < vocabulary_size:
            raise ValueError(
                f"tokens holds the id {extreme}: with a vocabulary of {vocabulary_size} types "
                f"the ids must be 0..{vocabulary_size - 1}"
            )


def _check_numbers(classes: int, occurring: int, exchange: int) -> None:
    if exchange < 0:
        raise ValueError(f"exchange is {exchange}: the number of sweeps must be at least 0")
    if not 1 <= classes <= occurring:
        raise ValueError(
            f"classes is {classes}: it must be at least 1 and at most {occurring}, "
            "the number of word types that occur in tokens"
        )
