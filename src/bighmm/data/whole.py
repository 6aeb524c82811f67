"""A whole text in the tokens of a given vocabulary, not divided into splits."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bighmm.data.corpus import is_prepared
from bighmm.data.sources import find_source
from bighmm.data.tokenizers import Tokenizer

LINES_AT_ONCE = 4096


@dataclass(frozen=True, eq=False)
class WholeText:
    """A text as one stream of token ids, which stands for any of the splits of a `Corpus`."""

    tokenizer: Tokenizer
    tokens: np.ndarray  # (T,) with an end mark after every line
    starts: np.ndarray  # (documents + 1,) where documents begin, and where the last one ends

    def split(self, name: str) -> np.ndarray:
        return self.tokens

    def documents(self, name: str) -> np.ndarray:
        return self.starts


def has_splits(source: str | Path) -> bool:
    """Whether a source has splits of its own; ValueError if there is no such source."""
    return is_prepared(source) or "" not in find_source(source, 0.05, 0.05).files


def encode_whole(source: str | Path, tokenizer: Tokenizer) -> WholeText:
    """All of a text file, or of a folder of them, in tokens; documents are as in `sources`.

    Raises ValueError if there is no text.
    """
    lines, starts = list(find_source(source, 0.05, 0.05).whole_lines()), [0]
    rows: list[np.ndarray] = []
    for first in range(0, len(lines), LINES_AT_ONCE):
        some = lines[first : first + LINES_AT_ONCE]
        encoded = tokenizer.encode_lines([line for _, line in some])
        for (begins, _), ids in zip(some, encoded, strict=True):
            if begins and rows:
                starts.append(starts[-1])
            rows.append(np.array(ids, dtype=np.int64))
            starts[-1] += len(ids)
    if not rows:
        raise ValueError(f"the text {source} has no lines; give one with words in it")
    return WholeText(tokenizer, np.concatenate(rows), np.array([0, *starts]))
