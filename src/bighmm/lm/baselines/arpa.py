"""ARPA files, the usual text format of n-gram models with backoff weights."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bighmm.base.reading import read_lines
from bighmm.lm.baselines.kneser_ney import KneserNey, Level, find_keys

START, END = b"<s>", b"</s>"
MOST_DIGITS = 64  # of a number
_NUMBER = re.compile(rb"\s*\d{1,18}\s*")
ARPA_ZERO = -99.0  # the logarithm of zero in ARPA files


def write_arpa(model: KneserNey, path: str | Path, words: Sequence[str]) -> None:
    """Write a model as an ARPA file.

    words: the string of each id; the end mark is written as </s>.

    Raises ValueError if the words do not fit the vocabulary or cannot be written to an ARPA file.
    """
    names = [*_arpa_names(words, model.vocabulary_size, model.end), START]
    with Path(path).open("wb") as file:
        file.write(b"\\data\\\n")
        for n, level in enumerate(model.levels, 1):
            file.write(b"ngram %d=%d\n" % (n, len(level.keys)))
        texts = names  # of the n-grams of one order
        for n, level in enumerate(model.levels, 1):
            if n > 1:
                texts = _with_last_word(model, level, texts, names)
            file.write(b"\n\\%d-grams:\n" % n)
            file.writelines(_arpa_lines(level, texts, last=n == model.order))
        file.write(b"\n\\end\\\n")


def read_arpa(path: str | Path, words: Sequence[str], end: int | None = None) -> KneserNey:
    """The model in an ARPA file; it may have been smoothed in any way.

    words: the string of each id. The file must have exactly these words. It may also have <s>. An
        <unk> in the file is ignored if it is not among the words.
    end: the id for </s> in the file.

    Raises ValueError if the file cannot be opened or is not an ARPA file of these words.
    """
    names = _arpa_names(words, len(words), end)
    levels = _ArpaReader(Path(path), names).levels()
    return KneserNey(len(words), end, levels)


def _with_last_word(
    model: KneserNey, level: Level, contexts: list[bytes], names: list[bytes]
) -> list[bytes]:
    """The n-grams of a level as text, from those of the level below and the words."""
    before, last = np.divmod(level.keys, model.vocabulary_size + 1)
    pairs = zip(before.tolist(), last.tolist(), strict=True)
    return [contexts[c] + b" " + names[w] for c, w in pairs]


def _arpa_names(words: Sequence[str], vocabulary_size: int, end: int | None) -> list[bytes]:
    """The words as bytes for ARPA files; ValueError if they cannot be written there."""
    if len(words) != vocabulary_size:
        raise ValueError(f"there are {len(words)} words for a vocabulary of {vocabulary_size}")
    names = [word.encode() for word in words]
    if end is not None:
        names[end] = END
    used = {START}
    for name in names:
        if name.split() != [name]:
            raise ValueError(f"the word {name.decode()!r} is empty or has a space in it")
        if name in used:
            raise ValueError(f"the word {name.decode()} is there twice or is the start symbol")
        used.add(name)
    return names


def _arpa_lines(level: Level, texts: list[bytes], *, last: bool) -> Iterator[bytes]:
    """The lines of one order; the last order has no backoff weights."""
    probs = _to_log10(level.log_probs).tolist()
    if last:
        yield from (b"%.8f\t%b\n" % line for line in zip(probs, texts, strict=True))
    else:
        backoffs = _to_log10(level.log_backoffs).tolist()
        yield from (b"%.8f\t%b\t%.8f\n" % line for line in zip(probs, texts, backoffs, strict=True))


def _to_log10(natural: np.ndarray) -> np.ndarray:
    return np.maximum(natural / math.log(10), ARPA_ZERO)


def _from_log10(values: np.ndarray) -> np.ndarray:
    return np.where(values <= ARPA_ZERO, -math.inf, values * math.log(10))


class _ArpaReader:
    """Reads an ARPA file; its errors name the line."""

    def __init__(self, path: Path, names: list[bytes]) -> None:
        self._path, self._file, self._names = path, read_lines(path), names
        self._line_number = 0
        self._ids = {name: id for id, name in enumerate([*names, START])}
        self._ids.setdefault(b"<unk>", -1)

    def levels(self) -> list[Level]:
        """The n-grams of all orders."""
        while self._line() != b"\\data\\":
            pass
        sizes: list[int] = []
        while (line := self._line()).startswith(b"ngram "):
            order, _, count = line[6:].partition(b"=")
            if order.strip() != b"%d" % (len(sizes) + 1) or not _NUMBER.fullmatch(count):
                raise self._error("it does not say how many n-grams of the next order there are")
            sizes.append(int(count))
        if not sizes:
            raise self._error("it has no n-grams")
        levels: list[Level] = []
        for n, size in enumerate(sizes, 1):
            if line != b"\\%d-grams:" % n:
                raise self._error(f"the {n}-grams should begin here")
            levels.append(self._level(levels, *self._section(n, size)))
            line = self._line()
        if line != b"\\end\\":
            raise self._error("the n-grams should end here")
        return levels

    def _section(self, n: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        """The n-grams of order n: their ids (n-grams, n), and log10 p and log10 backoff weight.

        The latter are (n-grams, 2), with 0 for a missing backoff weight. N-grams with an <unk> that
        is not in the vocabulary are left out.
        """
        ids: list[int] = []
        values: list[bytes] = []
        for _ in range(size):
            fields = self._line().split()
            if len(fields) not in (n + 1, n + 2):
                raise self._error(f"it is no {n}-gram with one or two numbers")
            try:
                n_gram = [self._ids[name] for name in fields[1 : n + 1]]
            except KeyError as error:
                name = error.args[0].decode(errors="replace")
                raise self._error(f"the word {name} is not in the vocabulary") from None
            if any(len(number) > MOST_DIGITS for number in (fields[0], *fields[n + 1 :])):
                raise self._error("it has what should be a number and is not")
            if -1 not in n_gram:
                ids += n_gram
                values += fields[0], fields[n + 1] if len(fields) == n + 2 else b"0"
        try:
            numbers = np.array(values, dtype=bytes).astype(np.float64)
        except ValueError as error:
            raise self._error(f"above it is what should be a number ({error})") from None
        if np.isnan(numbers).any() or np.isposinf(numbers).any():
            raise self._error("above it is what should be a number and is not")
        return np.array(ids, dtype=np.int64).reshape(-1, n), numbers.reshape(-1, 2)

    def _level(self, lower: list[Level], ids: np.ndarray, values: np.ndarray) -> Level:
        """The level of n-grams as `_section` returns them; `lower` are the levels below."""
        base = len(self._names) + 1
        numbers = ids[:, 0]
        for n in range(1, ids.shape[1]):
            if (numbers < 0).any():
                raise self._error(f"above it is a {n + 1}-gram without the {n}-gram it begins with")
            numbers = numbers * base + ids[:, n]
            if n < len(lower):
                numbers = find_keys(lower[n].keys, numbers)
        order = np.argsort(numbers, kind="stable")
        keys, (probs, backoffs) = numbers[order], _from_log10(values[order]).T
        if (keys[1:] == keys[:-1]).any():
            raise self._error("above it is an n-gram twice")
        if not lower:
            missing = np.setdiff1d(np.arange(base - 1), keys)
            if len(missing):
                name = self._names[missing[0]].decode()
                raise self._error(f"the word {name} is not among the 1-grams above")
            if len(keys) < base:  # no <s>
                keys, probs = np.arange(base), np.append(probs, -math.inf)
                backoffs = np.append(backoffs, 0.0)
        return Level(keys, np.ascontiguousarray(probs), np.ascontiguousarray(backoffs))

    def _line(self) -> bytes:
        """The next line that is not empty."""
        for line in self._file:
            self._line_number += 1
            if line := line.strip():
                return line
        raise self._error("the file is cut short, or is no ARPA file")

    def _error(self, what: str) -> ValueError:
        place = f"line {self._line_number}"
        return ValueError(f"{self._path} is not a usable ARPA file: {place}: {what}")
