"""Several models on the same text: the surprisal of every word, in bits.

Models may have different tokenizers. So a word here is what stands between spaces, and its
surprisal is the sum of those of its tokens. Where a tokenizer puts two words into one token, or
where the tokens of the beginning of a line are not the beginning of those of the line, words are
taken together.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from bighmm.base.interrupting import report
from bighmm.infer.sequences import padded
from bighmm.lm.protocol import LM
from bighmm.lm.questions import token_log_probs

_WORD = re.compile(r"\S+")
LINES_AT_ONCE = 16


@dataclass(frozen=True)
class ComparedWord:
    """A word with its surprisal in each model; None stands for the end of the line."""

    word: str | None
    bits: list[float]  # infinite where its probability is zero
    is_unknown: list[bool]  # whether it has a token that stands for unknown words


@dataclass(frozen=True)
class ComparedLine:
    """A line of text and its words, the end mark last."""

    text: str
    log_prob: list[float]  # of the line with its end mark, by model
    tokens: list[int]  # with the end mark, by model
    words: list[ComparedWord]


def compare(models: Sequence[LM], lines: Sequence[str]) -> list[ComparedLine]:
    """The surprisal of every word of each line in each model.

    Every line is a text of its own. It tells how many lines it has done (`base.interrupting`).
    Raises ValueError for models or lines that are missing.
    """
    if not models:
        raise ValueError("there is no model to compare")
    if not lines or not any(line.strip() for line in lines):
        raise ValueError("there is no text to compare models on; give at least one line")
    found = []
    for first in range(0, len(lines), LINES_AT_ONCE):
        some = lines[first : first + LINES_AT_ONCE]
        ids = [[lm.encode(line + "\n") for line in some] for lm in models]
        scored = [_log_probs(lm, rows) for lm, rows in zip(models, ids, strict=True)]
        for number, line in enumerate(some):
            rows = [of_model[number] for of_model in ids]
            log_probs = [of_model[number] for of_model in scored]
            found.append(_line(models, line, rows, log_probs))
        report(first + len(some), len(lines))
    return found


def _log_probs(lm: LM, rows: list[list[int]]) -> list[list[float]]:
    """log p of every token of each row, given those before it."""
    tokens, lengths = padded(rows)
    found = token_log_probs(lm.predictor(), tokens, lengths).tolist()
    return [each[: len(row)] for each, row in zip(found, rows, strict=True)]


def _line(
    models: Sequence[LM], line: str, ids: list[list[int]], log_probs: list[list[float]]
) -> ComparedLine:
    ends = _common_ends(models, line, ids)
    words, begin, places = [], 0, [0] * len(models)
    for end, after in [*ends, (None, [len(row) for row in ids])]:
        word = None if end is None else line[begin:end].strip()
        spans = [slice(a, b) for a, b in zip(places, after, strict=True)]
        words.append(
            ComparedWord(
                word,
                [-sum(row[span]) / math.log(2) for row, span in zip(log_probs, spans, strict=True)],
                [
                    lm.tokenizer.unknown is not None and lm.tokenizer.unknown in row[span]
                    for lm, row, span in zip(models, ids, spans, strict=True)
                ],
            )
        )
        begin, places = end or begin, after
    return ComparedLine(
        line, [math.fsum(row) for row in log_probs], [len(row) for row in ids], words
    )


def _common_ends(
    models: Sequence[LM], line: str, ids: list[list[int]]
) -> list[tuple[int, list[int]]]:
    """Where words end, as a character of the line and a number of tokens of each model.

    Ends at which the tokens so far are not a beginning of all tokens are left out, but the last one
    is always there: all tokens but the end mark belong to words.
    """
    marks = [match.end() for match in _WORD.finditer(line)]
    found = []
    for end in marks:
        counts = []
        for lm, row in zip(models, ids, strict=True):
            so_far = lm.encode(line[:end])
            if end == marks[-1]:
                counts.append(len(row) - 1)
            elif row[: len(so_far)] == so_far:
                counts.append(len(so_far))
        if len(counts) == len(models):
            found.append((end, counts))
    return found
