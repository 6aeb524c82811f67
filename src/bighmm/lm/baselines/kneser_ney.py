"""N-gram language models with interpolated modified Kneser-Ney smoothing (Chen & Goodman 1999).

Conventions:

- A sentence ends with its end mark, which is predicted like any word. It begins with one start
  symbol <s>, which is part of contexts and never predicted. Contexts do not reach into the sentence
  before. A stream without end marks is one sentence.
- The vocabulary is closed, and <unk> is a word like any other. Every order is interpolated with the
  order below, and order 1 with the uniform distribution over the vocabulary. So every word has a
  positive probability after every context, and these sum to one.
- The count of an n-gram of the highest order is the number of its occurrences. The count of an
  n-gram of a lower order is the number of different words (or <s>) that occur before it. N-grams
  that begin with <s> have no word before them, so their count is the number of occurrences in every
  order, as in SRILM and KenLM.
- Each order has three discounts, for n-grams with count 1, 2, and 3 or more
  (`estimate_discounts`).

With order 5 this gives test perplexities of 141.2 on Penn Treebank and 220.1 on WikiText-2.

A model is stored with backoff weights, as in ARPA files: an n-gram that was seen has its
interpolated probability. Any other has the probability of the n-gram without its first word, times
the backoff weight of its context (1 for a context that was not seen).

    p(w | h) = p[h w]  if h w was seen,  else  backoff[h] p(w | h without its first word)

The n-grams of each order are numbered. With c the number of its first n - 1 words among the n-grams
of order n - 1, and w its last word, the n-gram with number i has

    keys[i] = c (vocabulary size + 1) + w.

Keys are sorted, so the words that follow a context are contiguous. The number of a word is its id;
<s> has the id after the last word.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from bighmm.base.files import (
    check_hashes,
    existing_folder,
    hashes,
    is_earlier_save,
    replace_folder,
    write_sealed,
)
from bighmm.base.json_files import read_object
from bighmm.base.settings import Count, Positive, fill, shown
from bighmm.base.tensor_files import read_tensors, write_tensors
from bighmm.data.corpus import sentence_bounds

FORMAT = 1  # of saved folders
SETTINGS, TENSORS = "ngrams.json", "ngrams.safetensors"

Discounts = Literal["modified", "single"]


@dataclass(frozen=True, eq=False)
class Level:
    """The n-grams of one order; all arrays are (n-grams,)."""

    keys: np.ndarray  # int64, ascending
    log_probs: np.ndarray  # float64, ln p(last word | other words)
    log_backoffs: np.ndarray  # float64, ln of the backoff weight as a context; 0 if never a context

    def check(self, vocabulary_size: int, lower: list[Level]) -> None:
        """Raises ValueError if they are not the n-grams after those of the levels below."""
        base, number = vocabulary_size + 1, len(lower) + 1
        for name, array in vars(self).items():
            expected = np.dtype(np.int64 if name == "keys" else np.float64)
            if array.dtype != expected or array.shape != self.keys.shape or array.ndim != 1:
                raise ValueError(f"the {name} of {number}-grams are not an array of {expected}")
        contexts = len(lower[-1].keys) if lower else 1
        inside = not len(self.keys) or 0 <= self.keys[0] <= self.keys[-1] < contexts * base
        if not inside or (np.diff(self.keys) <= 0).any() or not (lower or len(self.keys) == base):
            raise ValueError(f"the keys of {number}-grams are not those of n-grams")
        if np.isnan(self.log_probs).any() or np.isnan(self.log_backoffs).any():
            raise ValueError(f"a probability of {number}-grams is not a number")


@dataclass(frozen=True)
class Settings:
    """The content of ngrams.json."""

    format: int
    vocabulary_size: Positive
    end: Count | None
    order: Positive
    files: dict[str, str]

    def __post_init__(self) -> None:
        if self.end is not None and self.end >= self.vocabulary_size:
            raise ValueError(f"the end mark {self.end} is outside the vocabulary of n-grams")


@dataclass(frozen=True, eq=False)
class KneserNey:
    """An n-gram model, from `KneserNey.fit`, `KneserNey.load` or `read_arpa`."""

    vocabulary_size: int
    end: int | None  # the end mark
    levels: list[Level]  # of orders 1, 2, …
    discounts: np.ndarray | None = None  # (order, 3); None if the model is from an ARPA file

    @classmethod
    def fit(
        cls,
        tokens: np.ndarray,
        vocabulary_size: int,
        end: int | None,
        order: int = 5,
        discounts: Discounts = "modified",
        documents: np.ndarray | None = None,
    ) -> KneserNey:
        """The model of a stream of token ids (T,).

        end: the id of the end mark.
        discounts: "modified" for three discounts in each order, "single" for one.
        documents: offsets where documents begin; each begins a sentence, also without an end mark.

        Raises ValueError for an order below 1, unknown discounts, and wrong or no token ids.
        """
        if order < 1:
            raise ValueError(f"the order is {order}; it must be at least 1")
        if discounts not in ("modified", "single"):
            raise ValueError(f"discounts is {discounts!r}; it must be 'modified' or 'single'")
        counts = _count(_Stream(tokens, vocabulary_size, end, documents), order)
        estimated = np.array([estimate_discounts(c.counts, discounts) for c in counts])
        levels: list[Level] = []
        below = np.full(1, 1 / vocabulary_size)  # the uniform distribution
        for n_grams, discount in zip(counts, estimated, strict=True):
            probs, weights = _interpolate(n_grams, discount, below)
            if levels:
                np.log(weights, out=levels[-1].log_backoffs)
            else:
                probs[vocabulary_size] = 0  # <s> is never predicted
            with np.errstate(divide="ignore"):
                levels.append(Level(n_grams.keys, np.log(probs), np.zeros(len(probs))))
            below = probs
        return cls(vocabulary_size, end, levels, estimated)

    @property
    def order(self) -> int:
        """The length of the longest n-grams."""
        return len(self.levels)

    def log_probs(self, tokens: np.ndarray, documents: np.ndarray | None = None) -> np.ndarray:
        """ln p(token | its sentence before it) for every token of a stream (T,): (T,) float64.

        documents: offsets of documents, as in `fit`.
        """
        stream = _Stream(tokens, self.vocabulary_size, self.end, documents)
        result = self.levels[0].log_probs[stream.words]
        numbers = stream.words  # of the n-gram of the current order that ends at each position
        for n in range(2, self.order + 1):
            places = stream.ends(n)
            places = places[numbers[places - 1] >= 0]  # where the context was seen
            contexts = numbers[places - 1]
            n_grams = self._find(n, contexts, stream.words[places])
            seen = n_grams >= 0
            result[places] += self.levels[n - 2].log_backoffs[contexts]
            result[places[seen]] = self.levels[n - 1].log_probs[n_grams[seen]]
            numbers = np.full(len(numbers), -1)
            numbers[places] = n_grams
        return result[stream.is_token]

    def next_probs(self, context: Sequence[int] | np.ndarray) -> np.ndarray:
        """The distribution of the token after `context`: (vocabulary size,) float64.

        context: token ids from the beginning of a sentence; only the last sentence matters. If it
            is empty, the result is the distribution of the first word of a sentence.
        """
        size = self.vocabulary_size
        history = np.append(size, _checked(context, size))
        if self.end is not None and len(ends := np.flatnonzero(history == self.end)):
            history = np.append(size, history[ends[-1] + 1 :])
        last = np.full(self.order - 1, -1)
        kept = min(len(last), len(history))
        last[len(last) - kept :] = history[len(history) - kept :]
        return self.next_probs_after(last[np.newaxis])[0]

    def next_probs_after(self, histories: np.ndarray) -> np.ndarray:
        """The distributions of the tokens after several contexts: (B, vocabulary size) float64.

        histories: the last words (B, order - 1) of each context, with the vocabulary size for <s>
            and -1 for what would be before it.
        """
        size = self.vocabulary_size
        probs = np.tile(np.exp(self.levels[0].log_probs[:size]), (len(histories), 1))
        for n in range(2, self.order + 1):
            numbers = self._numbers(histories[:, self.order - n :])
            rows = np.flatnonzero(numbers >= 0)
            probs[rows] *= np.exp(self.levels[n - 2].log_backoffs[numbers[rows], np.newaxis])
            level, first = self.levels[n - 1], numbers[rows] * (size + 1)
            begins, ends = (np.searchsorted(level.keys, first + more) for more in (0, size))
            counts = ends - begins  # of the words that follow each context
            shift = np.repeat(begins - (np.cumsum(counts) - counts), counts)
            places = shift + np.arange(len(shift))
            words = level.keys[places] - np.repeat(first, counts)
            probs[np.repeat(rows, counts), words] = np.exp(level.log_probs[places])
        return probs

    def perplexity(self, tokens: np.ndarray, documents: np.ndarray | None = None) -> float:
        """The perplexity of a stream (T,); every token counts, also end marks and unknown words.

        documents: as for `log_probs`.
        """
        per_token = -float(self.log_probs(tokens, documents).mean())
        return math.exp(per_token) if per_token < 700 else math.inf

    def save(self, folder: str | Path) -> None:
        """Write the model to a folder; ValueError if it holds anything but an earlier model."""
        target = Path(folder)

        def may_replace(existing: Path) -> bool:
            return is_earlier_save(existing, SETTINGS, [TENSORS], lambda saved: "order" in saved)

        def fill(fresh: Path) -> None:
            arrays = {
                f"{n}.{name}": array
                for n, level in enumerate(self.levels)
                for name, array in vars(level).items()
            }
            if self.discounts is not None:
                arrays["discounts"] = self.discounts
            tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
            write_tensors(fresh / TENSORS, tensors)
            settings = {
                "format": FORMAT,
                "vocabulary_size": self.vocabulary_size,
                "end": self.end,
                "order": self.order,
                "files": hashes(fresh),
            }
            write_sealed(fresh / SETTINGS, settings)

        replace_folder(target, fill, keep_previous=False, may_replace=may_replace)

    @classmethod
    def load(cls, folder: str | Path) -> KneserNey:
        """The model in a folder that `save` wrote; ValueError if it is missing or damaged."""
        existing = existing_folder(Path(folder))
        if existing is None:
            raise ValueError(f"there is no n-gram model {folder}")
        path = existing / SETTINGS
        found = read_object(path)
        if found.get("format") != FORMAT:
            raise ValueError(
                f"the n-gram model {folder} is of format {shown(found.get('format'))}, and this "
                f"version reads format {FORMAT}"
            )
        settings = fill(Settings, found, f"{path} is damaged: it")
        check_hashes(existing, settings.files, [TENSORS])
        arrays = {name: t.numpy() for name, t in read_tensors(existing / TENSORS).items()}
        if len(arrays) not in (3 * settings.order, 3 * settings.order + 1):
            raise ValueError(
                f"{existing / TENSORS} is damaged: it is not of order {settings.order}"
            )
        try:
            levels: list[Level] = []
            for n in range(settings.order):
                level = Level(*(arrays[f"{n}.{field}"] for field in Level.__dataclass_fields__))
                level.check(settings.vocabulary_size, levels)
                levels.append(level)
        except (KeyError, ValueError) as error:
            reason = f"it has no {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"{existing / TENSORS} is damaged: {reason}") from None
        return cls(settings.vocabulary_size, settings.end, levels, arrays.get("discounts"))

    def _find(self, n: int, contexts: np.ndarray, words: np.ndarray) -> np.ndarray:
        """The numbers (N,) of n-grams of order n, -1 for those that were not seen.

        contexts: the numbers (N,) of their first n - 1 words, or -1.
        words: their last words (N,).
        """
        return find_keys(self.levels[n - 1].keys, contexts * (self.vocabulary_size + 1) + words)

    def _numbers(self, n_grams: np.ndarray) -> np.ndarray:
        """The numbers (N,) of n-grams (N, n), -1 for those that were not seen."""
        numbers = n_grams[:, 0]
        for n in range(2, n_grams.shape[1] + 1):
            numbers = self._find(n, numbers, n_grams[:, n - 1])
        return numbers


def estimate_discounts(counts: np.ndarray, discounts: Discounts = "modified") -> np.ndarray:
    """The discounts of n-grams of one order with count 1, 2, and 3 or more: (3,) float64.

    counts: of all n-grams of the order.

    With n_k the number of n-grams with count k, and Y = n_1 / (n_1 + 2 n_2),

        D_k = k - (k + 1) Y n_(k+1) / n_k.

    If n_k or n_(k+1) is zero, or D_k is not between 0 and k, then D_k = Y, the single discount of
    Kneser & Ney. If n_1 or n_2 is zero, as in tiny corpora or where rare words have been replaced,
    Y is not defined, and all discounts are 0.5. So 0 < D_k < k in all cases, and no word gets the
    probability 0.
    """
    n = np.bincount(np.minimum(counts, 5), minlength=6).tolist()
    if not (n[1] and n[2]):
        return np.full(3, 0.5)
    y = n[1] / (n[1] + 2 * n[2])
    result = np.full(3, y)
    if discounts == "modified":
        for k in (2, 3):  # D_1 is Y
            if n[k] and n[k + 1] and (d := k - (k + 1) * y * n[k + 1] / n[k]) > 0:
                result[k - 1] = d
    return result


def find_keys(keys: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """The places (N,) of `queries` (N,) in the sorted `keys`, -1 for those that are missing."""
    if not len(keys):
        return np.full(queries.shape, -1)
    places = np.minimum(np.searchsorted(keys, queries), len(keys) - 1)
    return np.where(keys[places] == queries, places, -1)


class _Stream:
    """Token ids with <s> inserted before every sentence."""

    def __init__(
        self,
        tokens: np.ndarray,
        vocabulary_size: int,
        end: int | None,
        documents: np.ndarray | None,
    ) -> None:
        if end is not None and not 0 <= end < vocabulary_size:
            raise ValueError(
                f"the end mark {end} is outside the vocabulary; ids are 0 to {vocabulary_size - 1}"
            )
        self.start = vocabulary_size  # the id of <s>
        ids = _checked(tokens, vocabulary_size)
        if not len(ids):
            raise ValueError("an n-gram model needs at least one token, and there is none")
        starts = sentence_bounds(ids, -1 if end is None else end, documents)[:-1]
        self.words = np.insert(ids, starts, self.start)
        self.is_token = self.words != self.start
        positions = np.arange(len(self.words))
        last_start = np.maximum.accumulate(np.where(self.is_token, 0, positions))
        self.before = positions - last_start  # number of symbols before it in the same sentence

    def ends(self, n: int) -> np.ndarray:
        """The positions with at least n - 1 symbols of their sentence before them."""
        return np.flatnonzero(self.before >= n - 1)


@dataclass
class _NgramCounts:
    """The n-grams of one order in a stream; all arrays are (n-grams,)."""

    keys: np.ndarray
    counts: np.ndarray
    contexts: np.ndarray  # the number of the n-gram without its last word, one order below
    shorter: np.ndarray  # the number of the n-gram without its first word, one order below


def _count(stream: _Stream, order: int) -> list[_NgramCounts]:
    """The n-grams of orders 1 to `order`, with the counts of Kneser-Ney smoothing."""
    base = stream.start + 1
    numbers = stream.words  # of the n-gram of the current order that ends at each position
    counts = np.bincount(numbers, minlength=base)
    counts[stream.start] = 0  # <s> is not predicted
    zeros = np.zeros(base, dtype=np.int64)
    result = [_NgramCounts(np.arange(base), counts, zeros, zeros)]
    for n in range(2, order + 1):
        places = stream.ends(n)
        keys, first, inverse, counts = np.unique(
            numbers[places - 1] * base + stream.words[places],
            return_index=True,
            return_inverse=True,
            return_counts=True,
        )
        shorter = numbers[places[first]]
        lower = result[-1]
        different_before = np.bincount(shorter, minlength=len(lower.keys))
        begins_with_start = np.zeros(len(lower.keys), dtype=bool)
        begins_with_start[numbers[stream.before == n - 2]] = True
        lower.counts = np.where(begins_with_start, lower.counts, different_before)
        result.append(_NgramCounts(keys, counts, keys // base, shorter))
        numbers = np.full(len(numbers), -1)
        numbers[places] = inverse
    return result


def _interpolate(
    n_grams: _NgramCounts, discounts: np.ndarray, below: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The probabilities (n-grams,), and the backoff weights of their contexts (lower n-grams,).

    discounts: those of the order (3,).
    below: the probabilities (lower n-grams,) of the order below.
    """
    counts, contexts = n_grams.counts, n_grams.contexts
    discount = np.append(0, discounts)[np.minimum(counts, 3)]
    totals = np.bincount(contexts, counts, minlength=len(below))
    weights = np.ones(len(below))
    discounted = np.bincount(contexts, discount, minlength=len(below))
    np.divide(discounted, totals, weights, where=totals > 0)
    probs = (counts - discount) / totals[contexts] + weights[contexts] * below[n_grams.shorter]
    return probs, weights


def _checked(tokens: Sequence[int] | np.ndarray, vocabulary_size: int) -> np.ndarray:
    """Token ids as (tokens,) int64; ValueError if they are not token ids."""
    ids = np.asarray(tokens)
    if ids.ndim != 1:
        raise ValueError(f"tokens must be one sequence of ids, not of shape {ids.shape}")
    if not len(ids):
        return np.zeros(0, dtype=np.int64)
    if not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"tokens must be integers, not {ids.dtype}")
    if ids.min() < 0 or ids.max() >= vocabulary_size:
        wrong = ids.min() if ids.min() < 0 else ids.max()
        raise ValueError(
            f"the token id {wrong} is outside the vocabulary; ids are 0 to {vocabulary_size - 1}"
        )
    return ids.astype(np.int64)
