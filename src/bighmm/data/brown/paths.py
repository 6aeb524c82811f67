"""Files of Brown clusters, in the format of wcluster: `bit string<TAB>word<TAB>count` lines.

A tab or a line break within a word, which ends a field, stands there as a picture of it (␉ ␊ ␍).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bighmm.base.files import write_atomically
from bighmm.base.reading import read_lines
from bighmm.base.settings import shown
from bighmm.data.brown.bigrams import average_mutual_information
from bighmm.data.brown.clustering import Clusters

PICTURES = str.maketrans({"\t": "␉", "\n": "␊", "\r": "␍"})


def can_be_written(words: Sequence[str]) -> bool:
    """Whether a paths file tells these words from each other."""
    return len({word.translate(PICTURES) for word in words}) == len(words)


def write_paths(
    path: str | Path, clusters: Clusters, words: Sequence[str], counts: Sequence[int] | np.ndarray
) -> None:
    """Write a paths file of the V words and their counts, in UTF-8.

    Lines are sorted by class, within a class by decreasing count, and then by id. Raises ValueError
    if words, counts and classes differ in number.
    """
    if not len(words) == len(counts) == len(clusters.classes):
        raise ValueError(
            f"{len(words)} words and {len(counts)} counts do not fit a clustering of "
            f"{len(clusters.classes)} types: give one word and one count per type"
        )
    shown_words = [word.translate(PICTURES) for word in words]
    order = np.lexsort((-np.asarray(counts), clusters.classes))
    bits = [clusters.paths[c] for c in clusters.classes]
    lines = [f"{bits[v]}\t{shown_words[v]}\t{int(counts[v])}\n" for v in order]
    write_atomically(Path(path), "".join(lines).encode("utf-8"))


def read_paths(
    path: str | Path, words: Sequence[str], tokens: np.ndarray | None = None
) -> Clusters:
    """The clusters of the vocabulary `words` (V) in a paths file of this library or of wcluster.

    The bit strings of these words become classes 0..C-1 in sorted order; other words of the file
    are ignored. The AMI is that of `tokens` (T,), or nan without them. Raises ValueError for a
    malformed line, a word with two bit strings, and words that are missing in the file.
    """
    bits, words = _read_bits(Path(path)), [word.translate(PICTURES) for word in words]
    missing = [word for word in words if word not in bits]
    if missing:
        more = f" and {len(missing) - 1} more are" if len(missing) > 1 else " is"
        raise ValueError(
            f"the word list {path} does not cover the vocabulary: {missing[0]!r}{more} missing"
        )
    paths = tuple(sorted({bits[word] for word in words}))
    number = {bit_string: c for c, bit_string in enumerate(paths)}
    classes = np.array([number[bits[word]] for word in words], np.int32)
    information = np.nan if tokens is None else average_mutual_information(tokens, classes)
    return Clusters(classes, paths, information)


def _read_bits(path: Path) -> dict[str, str]:
    """The bit string of each word of a paths file."""
    bits: dict[str, str] = {}
    for number, raw in enumerate(read_lines(path), start=1):
        try:
            line = raw.decode("utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            raise ValueError(f"line {number} of {path} is not UTF-8 text") from None
        if not line:
            continue
        fields = line.split("\t")
        if len(fields) != 3 or set(fields[0]) - set("01") or not fields[2].isdecimal():
            form = "'bit string<TAB>word<TAB>count'"
            raise ValueError(f"line {number} of {path} is {shown(line)}: it must be {form}")
        if bits.setdefault(fields[1], fields[0]) != fields[0]:
            raise ValueError(f"line {number} of {path} gives {shown(fields[1])} two bit strings")
    return bits
