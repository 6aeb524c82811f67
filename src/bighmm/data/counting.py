"""Counts of tokens and of adjacent pairs, taken in chunks: a long text needs little memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

CHUNK = 1 << 22  # tokens


class Counted(NamedTuple):
    """The counts of a stream."""

    tokens: np.ndarray  # (V,), see `count_tokens`
    pairs: np.ndarray  # (P,), see `count_pairs`
    times: np.ndarray  # (P,)


def count(tokens: np.ndarray, size: int) -> Counted:
    """How often each token and each adjacent pair occurs in `tokens` (T,)."""
    return Counted(count_tokens(tokens, size), *count_pairs(tokens, size))


def count_together(tokens: np.ndarray, size: int) -> Counted | None:
    """As `count`, for the first of several processes, each of which counts a part; else None.

    All of them must ask (`base.processes`).
    """
    from bighmm.base import processes  # with torch, which is slow to load

    here = processes.current()
    part = here.share(len(tokens))
    some = tokens[part.start : part.stop]
    pairs, times = count_pairs(tokens[part.start : part.stop + 1], size)
    found = here.to_first(Counted(count_tokens(some, size), pairs, times))
    if found is None:
        return None
    pairs, times = _added(
        np.concatenate([one.pairs for one in found]), np.concatenate([one.times for one in found])
    )
    return Counted(np.sum([one.tokens for one in found], axis=0), pairs, times)


def count_tokens(tokens: np.ndarray, size: int) -> np.ndarray:
    """How often each id of 0..size-1 occurs in `tokens` (T,): (size,) int64."""
    counts = np.zeros(size, np.int64)
    for chunk in _chunks(tokens, overlap=0):
        counts += np.bincount(chunk, minlength=size)
    return counts


def count_pairs(
    tokens: np.ndarray, size: int, classes: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The adjacent pairs that occur in `tokens` (T,), and how often: (P,) int64 each.

    The pair of the ids a and b is the number a·size + b; the pairs are sorted. With `classes` (V,),
    pairs are those of the tokens' classes 0..size-1. Memory grows with P, not with T.
    """
    pairs, counts = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for chunk in _chunks(tokens, overlap=1):
        ids = chunk.astype(np.int64) if classes is None else classes[chunk].astype(np.int64)
        new, times = np.unique(ids[:-1] * size + ids[1:], return_counts=True)
        pairs, counts = _added(np.concatenate([pairs, new]), np.concatenate([counts, times]))
    return pairs, counts


def _added(pairs: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct pairs in order, with the sums of their counts."""
    order = np.argsort(pairs, kind="stable")  # of two sorted parts, which it only merges
    pairs = pairs[order]
    first = np.flatnonzero(np.diff(pairs, prepend=-1))
    return pairs[first], np.add.reduceat(counts[order], first)


def _chunks(tokens: np.ndarray, overlap: int) -> Iterator[np.ndarray]:
    """Parts of `tokens` that begin with the last `overlap` tokens of the part before."""
    for start in range(0, len(tokens) - overlap, CHUNK):
        yield np.asarray(tokens[start : start + CHUNK + overlap])
