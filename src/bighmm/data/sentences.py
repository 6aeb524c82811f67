"""Lines of text that are far too long, cut into sentences."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator

LONG_LINES = 5000  # characters of a line on average from which lines are cut
FEW_LINES = 3  # fewer cannot be divided into train, valid and test
LOOKED_AT = 200  # lines from which this is judged
LONGEST = 100  # words of a sentence; a longer one is cut into windows
WINDOW = 32  # words of these
LONGEST_WORD = 1000  # characters, likewise

# After a full stop, question or exclamation mark, with what closes a quotation; in writing without
# spaces no space follows.
_END = re.compile(r"(?<=[.!?…])[\"'”’»)\]]*\s+|(?<=[。！？])")


def are_too_long(lines: Iterable[str], few: int = FEW_LINES) -> bool:
    """Whether lines are so long, or fewer than `few`, that each is a document and no sentence."""
    some = [len(line) for line in itertools.islice(lines, LOOKED_AT) if line.strip()]
    return 0 < len(some) < few or sum(some) > LONG_LINES * max(1, len(some))


def sentences(line: str) -> Iterator[str]:
    """The sentences of a line; those without an end in sight are cut into windows of words."""
    begin = 0
    for match in _END.finditer(line):
        yield from _windows(line[begin : match.end()].strip())
        begin = match.end()
    yield from _windows(line[begin:].strip())


def _windows(sentence: str) -> Iterator[str]:
    """The sentence, or windows of it; nothing if it is empty."""
    if len(sentence) <= LONGEST:  # it cannot have more words
        if sentence:
            yield sentence
        return
    words = sentence.split()
    if max(map(len, words)) > LONGEST_WORD:  # writing without spaces
        for begin in range(0, len(sentence), LONGEST):
            yield sentence[begin : begin + LONGEST]
    elif len(words) <= LONGEST:
        yield sentence
    else:
        for begin in range(0, len(words), WINDOW):
            yield " ".join(words[begin : begin + WINDOW])
