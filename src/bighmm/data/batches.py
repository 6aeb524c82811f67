"""Batches of tokens for training: streams with a carried state, sentences, documents or windows.

A batch is a pure function of data, seed and step, so a run that continues needs only its step
number. Each epoch has another order of the documents (sentences, articles), except in "ordered" and
"rotated" streams, which are for models that carry their state from one sentence to the next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Protocol

import numpy as np

from bighmm.data.corpus import sentence_bounds
from bighmm.data.options import BatchKind

LONG_DOCUMENTS = 256  # tokens of a document on average from which each is copied on its own
AT_ONCE = 1 << 14  # short documents that are copied together


@dataclass(frozen=True)
class Batch:
    ids: np.ndarray  # (B, T) int64, 0 in the padding
    lengths: np.ndarray  # (B,) int64
    continues: bool | np.ndarray  # (B,) where rows differ: it continues that of the batch before
    states: np.ndarray | None = None  # (B, T) int64, -1 where a state is unknown


class Batches(Protocol):
    """All batches of a training run."""

    @property
    def steps_per_epoch(self) -> int: ...

    @property
    def shape(self) -> tuple[int, int] | None:
        """The largest (B, T) if most batches are that large; None if their shapes vary."""
        ...

    @property
    def tokens_per_step(self) -> float:
        """The mean number of tokens of a batch, or a close upper bound."""
        ...

    def batch(self, step: int) -> Batch:
        """The batch of a step, counted from 0 over all epochs."""
        ...


def make_batches(
    kind: BatchKind,
    tokens: np.ndarray,
    documents: np.ndarray,
    *,
    end: int,
    batch: int,
    window: int,
    seed: int,
) -> Batches:
    """The batches of a corpus, of one of the kinds below.

    tokens: the ids (N,) of the training split.
    documents: offsets where documents begin, and last where the last one ends: (documents + 1,).
    end: the id of the end mark.
    batch, window: the number of rows B, and the number of tokens T of a row.

    Raises ValueError for sizes below 1, an unknown kind, and a split without tokens.
    """
    if batch < 1 or window < 1:
        raise ValueError(f"batch and window must be at least 1, not {batch} and {window}")
    if len(tokens) == 0:
        raise ValueError("the training split holds no tokens")
    if kind in ("streams", "ordered", "rotated"):
        return Streams(tokens, documents, batch, window, seed, kind)
    if kind == "sentences":
        return Sentences(tokens, documents, end, batch, seed)
    if kind == "windows":
        return Windows(tokens, documents, batch, window, seed)
    if kind == "documents":
        return Documents(tokens, documents, batch, window, seed)
    raise ValueError(
        f"there are no batches of kind {kind!r}; use streams, ordered, rotated, sentences, "
        "windows or documents"
    )


def labelled_batches(
    kind: BatchKind,
    tokens: np.ndarray,
    documents: np.ndarray,
    states: np.ndarray,
    *,
    end: int,
    batch: int,
    window: int,
    seed: int,
) -> Labelled:
    """Batches of the first tokens of a corpus, with the states (n,) of these n tokens.

    The other arguments are those of `make_batches`. Raises ValueError for batches of sentences,
    because their bounds depend on the token ids.
    """
    if kind == "sentences":
        raise ValueError("labels go with all kinds of batches but sentences; use documents")
    count = min(len(tokens), len(states))
    documents = np.append(documents[documents < count], count)
    token_batches, state_batches = (
        make_batches(kind, ids, documents, end=end, batch=batch, window=window, seed=seed)
        for ids in (tokens[:count], np.asarray(states[:count]).astype(np.int64))
    )
    return Labelled(token_batches, state_batches)


class Streams:
    """The corpus cut into B contiguous streams; a batch is the next T tokens of each stream.

    The documents are shuffled in each epoch ("streams") or as they were written ("ordered"); or the
    text as it was written begins at another place in each epoch, and goes on from its end to its
    beginning, so that streams and windows have other bounds ("rotated").
    """

    def __init__(
        self,
        tokens: np.ndarray,
        documents: np.ndarray,
        batch: int,
        window: int,
        seed: int,
        kind: BatchKind,
    ) -> None:
        self.tokens, self.documents, self.kind = tokens, documents, kind
        self.rows, self.window, self.seed = min(batch, len(tokens)), window, seed
        self.shape = (self.rows, window)
        per_row = math.ceil(len(tokens) / self.rows)
        self.steps_per_epoch = math.ceil(per_row / window)
        self.tokens_per_step = self.rows * window
        self._epoch = lru_cache(maxsize=1)(self._compute_epoch)

    def batch(self, step: int) -> Batch:
        epoch, place = divmod(step, self.steps_per_epoch)
        stream, bounds = self._epoch(epoch)
        first = bounds[:-1] + place * self.window
        lengths = np.clip(bounds[1:] - first, 0, self.window)
        return Batch(_padded(stream, first, lengths), lengths, continues=place > 0)

    def _compute_epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        stream = self.tokens
        if self.kind == "streams":
            stream = _shuffled(self.tokens, self.documents, self.seed, epoch)
        elif self.kind == "rotated":
            begin = _generator(self.seed, epoch).integers(len(stream))
            stream = np.concatenate([stream[begin:], stream[:begin]])
        bounds = np.linspace(0, len(stream), self.rows + 1).round().astype(np.int64)
        return stream, bounds


class Sentences:
    """B whole sentences of similar length, each with its end mark."""

    POOL = 64  # sentences are sorted by length within pools of this many batches
    shape = None

    def __init__(
        self, tokens: np.ndarray, documents: np.ndarray, end: int, batch: int, seed: int
    ) -> None:
        self.tokens, self.rows, self.seed = tokens, batch, seed
        self.bounds = sentence_bounds(tokens, end, documents)
        self.steps_per_epoch = -(-(len(self.bounds) - 1) // batch)
        self.tokens_per_step = len(tokens) / self.steps_per_epoch
        self._epoch = lru_cache(maxsize=1)(self._compute_epoch)

    def batch(self, step: int) -> Batch:
        epoch, place = divmod(step, self.steps_per_epoch)
        chosen = self._epoch(epoch)[place]
        lengths = self.bounds[chosen + 1] - self.bounds[chosen]
        return Batch(padded_rows(self.tokens, self.bounds, chosen), lengths, continues=False)

    def _compute_epoch(self, epoch: int) -> list[np.ndarray]:
        generator = _generator(self.seed, epoch)
        sentences = generator.permutation(len(self.bounds) - 1)
        lengths = np.diff(self.bounds)
        batches: list[np.ndarray] = []
        for i in range(0, len(sentences), self.POOL * self.rows):
            pool = sentences[i : i + self.POOL * self.rows]
            pool = pool[np.argsort(lengths[pool], kind="stable")]
            batches += [pool[j : j + self.rows] for j in range(0, len(pool), self.rows)]
        return [batches[i] for i in generator.permutation(len(batches))]


class Windows:
    """Windows of T tokens from the shuffled corpus, independent of each other."""

    def __init__(
        self, tokens: np.ndarray, documents: np.ndarray, batch: int, window: int, seed: int
    ) -> None:
        self.tokens, self.documents = tokens, documents
        self.rows, self.window, self.seed = batch, window, seed
        self.shape = (batch, window)
        self.count = -(-len(tokens) // window)
        self.steps_per_epoch = -(-self.count // batch)
        self.tokens_per_step = batch * window
        self._epoch = lru_cache(maxsize=1)(self._compute_epoch)

    def batch(self, step: int) -> Batch:
        epoch, place = divmod(step, self.steps_per_epoch)
        stream, order = self._epoch(epoch)
        first = order[place * self.rows : (place + 1) * self.rows] * self.window
        lengths = np.minimum(self.window, len(stream) - first)
        return Batch(_padded(stream, first, lengths), lengths, continues=False)

    def _compute_epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        stream = _shuffled(self.tokens, self.documents, self.seed, epoch)
        return stream, _generator(self.seed, epoch, 1).permutation(self.count)


class Documents:
    """B whole documents of at most T tokens, each in a row of its own.

    So no document continues in another one, even if it has no end mark. Raises ValueError if a
    document is longer than T.
    """

    def __init__(
        self, tokens: np.ndarray, documents: np.ndarray, batch: int, window: int, seed: int
    ) -> None:
        self.tokens, self.bounds = tokens, documents
        self.rows, self.seed = min(batch, len(documents) - 1), seed
        longest = int(np.diff(documents).max())
        if longest > window:
            raise ValueError(
                f"a document of the training text has {longest} tokens and does not fit into a "
                f"window of {window}; use a larger window, or batches of streams"
            )
        self.shape = (self.rows, window)
        self.steps_per_epoch = -(-(len(documents) - 1) // self.rows)
        self.tokens_per_step = len(tokens) / self.steps_per_epoch
        self._epoch = lru_cache(maxsize=1)(self._compute_epoch)

    def batch(self, step: int) -> Batch:
        epoch, place = divmod(step, self.steps_per_epoch)
        chosen = self._epoch(epoch)[place * self.rows : (place + 1) * self.rows]
        lengths = self.bounds[chosen + 1] - self.bounds[chosen]
        return Batch(padded_rows(self.tokens, self.bounds, chosen), lengths, continues=False)

    def _compute_epoch(self, epoch: int) -> np.ndarray:
        return _generator(self.seed, epoch).permutation(len(self.bounds) - 1)


class Labelled:
    """Batches of tokens with a state for each token, from two sets of batches in the same order."""

    def __init__(self, tokens: Batches, states: Batches) -> None:
        self.tokens, self.states = tokens, states
        self.shape, self.steps_per_epoch = tokens.shape, tokens.steps_per_epoch
        self.tokens_per_step = tokens.tokens_per_step

    def batch(self, step: int) -> Batch:
        return replace(self.tokens.batch(step), states=self.states.batch(step).ids)


def padded_rows(tokens: np.ndarray, bounds: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The sentences with the numbers `rows` (B,), padded with 0: (B, T) int64.

    Sentence i is tokens[bounds[i] : bounds[i + 1]].
    """
    first = bounds[rows]
    return _padded(tokens, first, bounds[rows + 1] - first)


def _padded(stream: np.ndarray, first: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Rows (B, T) int64: row b is stream[first[b] : first[b] + lengths[b]], then zeros."""
    columns = np.arange(lengths.max(initial=0))
    inside = columns < lengths[:, None]
    places = np.where(inside, first[:, None] + columns, 0)
    return np.where(inside, np.asarray(stream)[places], 0).astype(np.int64)


def _shuffled(tokens: np.ndarray, documents: np.ndarray, seed: int, epoch: int) -> np.ndarray:
    """All tokens, with the documents in the order of this epoch."""
    order = _generator(seed, epoch).permutation(len(documents) - 1)
    tokens = np.asarray(tokens)
    if len(tokens) > LONG_DOCUMENTS * len(order):
        return np.concatenate([tokens[documents[d] : documents[d + 1]] for d in order])
    parts = []
    for some in np.split(order, range(AT_ONCE, len(order), AT_ONCE)):
        sizes = documents[some + 1] - documents[some]
        before = np.cumsum(sizes) - sizes  # where each document begins in this part
        places = np.repeat(documents[some] - before, sizes) + np.arange(int(sizes.sum()))
        parts.append(tokens[places])
    return np.concatenate(parts)


def _generator(*key: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(key)))
