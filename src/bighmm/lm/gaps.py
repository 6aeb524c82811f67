"""Text with gaps in it.

    ___      one word                 "the ___ sat on the mat"
    ___3     exactly three words
    ___1-4   one to four words

Words are what the tokenizer makes of a text, so with a subword tokenizer they are its pieces. Three
underscores or more, which are not part of a word, are a gap. Where a gap may have several lengths,
every choice of lengths is a text of its own to the model, and the choices have the probabilities
that the model gives to these texts: p(known words, lengths) = Σ p(text) over all fillings of these
lengths.
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from bighmm.data.tokenizers import Tokenizer
from bighmm.hmm import HMM
from bighmm.infer.fill import FillProbs
from bighmm.infer.positions import GAP
from bighmm.infer.sequences import padded

MARK = re.compile(r"(?<!\w)_{3,}(?:(\d+)(?:-(\d+))?)?(?!\w)")
LONGEST = 100  # words in a gap
MOST_CHOICES = 256  # of lengths, for all gaps of a text together

Lengths = tuple[int, ...]


class Filled(NamedTuple):
    ids: list[int]  # of the whole text, without the end mark that was put behind it
    words: list[list[int]]  # what is in each gap


class Best(NamedTuple):
    filled: list[Filled]
    log_probs: list[float]  # log p(text), of the fillings best first
    exact: bool  # these are certainly the best


@dataclass(frozen=True)
class GappedText:
    """What stands before, between and behind the gaps, and how long each gap may be."""

    pieces: list[list[int]]  # token ids, one piece more than there are gaps
    ranges: list[tuple[int, int]]  # the shortest and the longest that each gap may be
    ended: bool  # the last piece has an end mark that the text had not

    @staticmethod
    def read(text: str, tokenizer: Tokenizer, open_end: bool = False) -> GappedText:
        """A text with `___` for its gaps; its end mark comes after it, unless its end is open.

        Raises ValueError if there is no gap, or too much of one.
        """
        marks = list(MARK.finditer(text))
        if not marks:
            raise ValueError(
                "the text has no gap; write ___ for one word, ___3 for three words or ___1-4 for "
                "one to four"
            )
        ranges = [_range(mark) for mark in marks]
        begins, ends = [mark.end() for mark in marks], [mark.start() for mark in marks]
        pieces = [text[a:b] for a, b in zip([0, *begins], [*ends, len(text)], strict=True)]
        # A space belongs to the word behind it, as subword tokenizers have it.
        known = [tokenizer.encode(piece.rstrip(" \t")) for piece in pieces]
        ended = not open_end and known[-1][-1:] != [tokenizer.end]
        if ended:
            known[-1] = [*known[-1], tokenizer.end]
        found = GappedText(known, ranges, ended)
        number = math.prod(high - low + 1 for low, high in ranges)
        if number > MOST_CHOICES:
            raise ValueError(
                f"the gaps of the text can have {number:,} different lengths together; at most "
                f"{MOST_CHOICES} can be tried, so give fewer or narrower ranges"
            )
        return found

    @property
    def choices(self) -> list[Lengths]:
        """Every choice of the lengths of all gaps."""
        return list(itertools.product(*(range(low, high + 1) for low, high in self.ranges)))

    def of_lengths(self, lengths: Lengths) -> GappedText:
        """The same text with gaps of these lengths."""
        return replace(self, ranges=[(length, length) for length in lengths])

    def tokens(self, choices: list[Lengths]) -> tuple[Tensor, Tensor]:
        """The text with gaps of these lengths: ids (B, T), -1 in the gaps, and lengths (B,)."""
        rows = []
        for lengths in choices:
            row = list(self.pieces[0])
            for length, piece in zip(lengths, self.pieces[1:], strict=True):
                row += [GAP] * length + piece
            rows.append(row)
        return padded(rows)

    def filled(self, row: list[int], lengths: Lengths) -> Filled:
        """What a row of ids, and more behind it, has in gaps of these lengths."""
        words = []
        place = len(self.pieces[0])
        for length, piece in zip(lengths, self.pieces[1:], strict=True):
            words.append(row[place : place + length])
            place += length + len(piece)
        return Filled(row[: place - self.ended], words)


def draw(
    hmm: HMM, text: GappedText, n: int, generator: torch.Generator | None, ends: bool
) -> list[Filled]:
    """n exact samples: lengths, and words of these lengths, given all that is known."""
    if n < 1:
        raise ValueError(f"n must be at least 1, not {n}")
    choices = text.choices
    tokens, sizes = text.tokens(choices)
    chosen = torch.zeros(n, dtype=torch.long)
    if len(choices) > 1:
        weights = _choice_probs(hmm, text, ends)
        chosen = torch.multinomial(weights, n, replacement=True, generator=generator).cpu()
    used, which, counts = chosen.unique(return_inverse=True, return_counts=True)
    rows = hmm.fill(tokens[used], int(counts.max()), generator, sizes[used], ends).tolist()
    return [text.filled(rows[i].pop(), choices[int(used[i])]) for i in which.tolist()]


def word_probs(hmm: HMM, text: GappedText, ends: bool) -> FillProbs:
    """As `hmm.fill_probs`; ValueError if a gap has a range of lengths."""
    if len(text.choices) > 1:
        raise ValueError(
            "the probabilities of words need gaps of known lengths; write ___2 instead of ___1-3"
        )
    tokens, sizes = text.tokens(text.choices)
    return hmm.fill_probs(tokens, sizes, ends)


def length_probs(hmm: HMM, text: GappedText, ends: bool) -> dict[Lengths, float]:
    """p(lengths of the gaps | known words) for every choice of them."""
    return dict(zip(text.choices, _choice_probs(hmm, text, ends).tolist(), strict=True))


def best(hmm: HMM, text: GappedText, k: int, ends: bool) -> Best:
    """The k most likely fillings of all lengths, or all that there are.

    Where a text fits in several ways, since gaps are next to each other or what is between them is
    also in them, each way is a filling, as it is for samples and for p(lengths).
    """
    tokens, sizes = text.tokens(text.choices)
    answer = hmm.best_fill(tokens, k, sizes, ends)
    found: list[tuple[float, Filled]] = []
    for lengths, rows, scores in zip(
        text.choices, answer.words.tolist(), answer.log_prob.tolist(), strict=True
    ):
        for row, score in zip(rows, scores, strict=True):
            if score > -math.inf:
                found.append((score, text.filled(row, lengths)))
    ranked = sorted(found, key=lambda pair: -pair[0])[:k]
    exact = bool(answer.exact.all())
    return Best([filled for _, filled in ranked], [score for score, _ in ranked], exact)


def _choice_probs(hmm: HMM, text: GappedText, ends: bool) -> Tensor:
    tokens, sizes = text.tokens(text.choices)
    log_probs = hmm.known_log_prob(tokens, sizes, ends)
    if not bool((log_probs > -torch.inf).any()):
        raise ValueError("the known words have probability zero, so nothing fits the gaps")
    return log_probs.softmax(0)


def _range(mark: re.Match[str]) -> tuple[int, int]:
    low = int(mark[1] or 1)
    high = int(mark[2] or low)
    if not low <= high or high < 1:
        raise ValueError(
            f"the gap {mark[0]} has no length; write ___3 for three words or ___1-4 for one to four"
        )
    if high > LONGEST:
        raise ValueError(f"the gap {mark[0]} is too long; a gap has at most {LONGEST} words")
    return low, high
