"""Reading a text with gaps in it.

    ___      one word                 "the ___ sat on the mat"
    ___3     exactly three words
    ___1-4   one to four words

Words are the tokens of the tokenizer, so pieces of words with a subword tokenizer. Three
underscores or more that are not part of a word are a gap. Where a gap may have several lengths,
every combination of lengths is a text of its own to the model.
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

from bighmm.data.tokenizers import Tokenizer
from bighmm.data.tokenizers.protocol import check_text
from bighmm.infer.positions import GAP
from bighmm.infer.sequences import padded

MARK = re.compile(r"(?<!\w)_{3,}(?:(\d+)(?:-(\d+))?)?(?!\w)")
LONGEST = 100  # words in a gap
MOST_CHOICES = 256  # combinations of lengths, for all gaps of a text together

Lengths = tuple[int, ...]  # one for each gap


class Filled(NamedTuple):
    """A text whose gaps are filled."""

    ids: list[int]  # the whole text, without the end mark that was added to it
    words: list[list[int]]  # the tokens in each gap


@dataclass(frozen=True)
class GappedText:
    """The known tokens before, between and after the gaps, and how long each gap may be."""

    pieces: list[list[int]]  # token ids, one piece more than there are gaps
    ranges: list[tuple[int, int]]  # the shortest and the longest length of each gap
    ended: bool  # whether an end mark was added to the last piece

    @staticmethod
    def read(text: str, tokenizer: Tokenizer, open_end: bool = False) -> GappedText:
        """Parse a text with `___` for its gaps; an end mark is added, unless its end is open.

        Raises ValueError if there is no gap, or a gap or all of them together are too long.
        """
        check_text(text)
        marks = list(MARK.finditer(text))
        if not marks:
            raise ValueError(
                "the text has no gap; write ___ for one word, ___3 for three words or ___1-4 for "
                "one to four"
            )
        ranges = [_range(mark) for mark in marks]
        begins, ends = [mark.end() for mark in marks], [mark.start() for mark in marks]
        pieces = [text[a:b] for a, b in zip([0, *begins], [*ends, len(text)], strict=True)]
        # Subword tokenizers put a space into the token of the word after it.
        known = [tokenizer.encode(piece.rstrip(" \t")) for piece in pieces]
        ended = not open_end and known[-1][-1:] != [tokenizer.end]
        if ended:
            known[-1] = [*known[-1], tokenizer.end]
        number = math.prod(high - low + 1 for low, high in ranges)
        if number > MOST_CHOICES:
            raise ValueError(
                f"the gaps of the text can have {number:,} different lengths together; at most "
                f"{MOST_CHOICES} can be tried, so give fewer or narrower ranges"
            )
        return GappedText(known, ranges, ended)

    @property
    def choices(self) -> list[Lengths]:
        """Every combination of the lengths of all gaps."""
        return list(itertools.product(*(range(low, high + 1) for low, high in self.ranges)))

    def of_lengths(self, lengths: Lengths) -> GappedText:
        """The same text with gaps of exactly these lengths."""
        return replace(self, ranges=[(length, length) for length in lengths])

    def tokens(self, choices: list[Lengths]) -> tuple[Tensor, Tensor]:
        """One row for each choice of lengths: ids (B, T), -1 in the gaps, and row lengths (B,)."""
        rows = []
        for lengths in choices:
            row = list(self.pieces[0])
            for length, piece in zip(lengths, self.pieces[1:], strict=True):
                row += [GAP] * length + piece
            rows.append(row)
        return padded(rows)

    def filled(self, row: list[int], lengths: Lengths) -> Filled:
        """The filled text that a row of ids holds, given the lengths of its gaps.

        The row may be longer than the text, as padded rows are.
        """
        words = []
        place = len(self.pieces[0])
        for length, piece in zip(lengths, self.pieces[1:], strict=True):
            words.append(row[place : place + length])
            place += length + len(piece)
        return Filled(row[: place - self.ended], words)


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
