"""ARPA files, the usual text format of n-gram models with backoff weights.

Three names have a meaning there: `<s>` begins a sentence and is never predicted, `</s>` is the end
mark, `<unk>` stands for words that are not in the vocabulary. A word of a vocabulary that is called
like one of them and is something else, such as the `<s>` of many subword tokenizers, has `_` added
to its name in the file, as often as it takes.
"""

from __future__ import annotations

import gzip
import lzma
import math
import re
from array import array
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import BinaryIO

import numpy as np

from bighmm.base.files import writing
from bighmm.base.reading import read_lines
from bighmm.data.tokenizers.protocol import END, UNKNOWN
from bighmm.lm.baselines.kneser_ney import KneserNey, Level, find_keys

ARPA_START, ARPA_END, ARPA_UNKNOWN = b"<s>", b"</s>", b"<unk>"
MOST_DIGITS = 64  # of a number
MOST_ORDER = 64
MOST_WORDS = 1 << 26  # bytes of a vocabulary that is taken from a file, with PER_WORD for each word
PER_WORD = 16
MOST_EMPTY = 10_000  # lines; files that are written have some around each order
MOST_BEFORE = 10_000  # lines before the n-grams are announced, which are comments
HIGHEST_BACKOFF = 10.0  # log10 of a backoff weight
N_GRAMS_AT_ONCE = 1 << 16
MOST_SHOWN = 200  # bytes of a word in a message
_NUMBER = re.compile(rb"\s*\d{1,18}\s*")
PACKED = (b"\x1f\x8b", b"\xfd7zXZ\x00")  # the beginnings of .gz and .xz
ARPA_ZERO = -99.0  # the logarithm of zero in ARPA files


def write_arpa(
    model: KneserNey, path: str | Path, words: Sequence[str], unknown: int | None = None
) -> None:
    """Write a model as an ARPA file, packed if its name ends in .gz or .xz.

    words: the string of each id; the end mark is written as </s>.
    unknown: the id that is written as <unk>, if it is called otherwise.

    Raises ValueError if the words do not fit the vocabulary or cannot be written to an ARPA file.
    """
    words_of_file, _ = _arpa_names(words, model.vocabulary_size, model.end, unknown)
    names = [*words_of_file, ARPA_START]
    with writing(Path(path)) as plain, _packing(plain, Path(path).suffix) as file:
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


def read_arpa(
    path: str | Path, words: Sequence[str], end: int | None = None, unknown: int | None = None
) -> KneserNey:
    """The model in an ARPA file, plain, .gz or .xz; it may have been smoothed in any way.

    words: the string of each id. The file must have exactly these words. It may also have <s>. An
        <unk> in the file is ignored if it is not among the words.
    end, unknown: the ids for </s> and <unk> in the file. If it does not have them, or a word that
        is called like <s>, </s> or <unk>, their probability is zero.

    Raises ValueError if the file cannot be opened or is not an ARPA file of these words.
    """
    names, marks = _arpa_names(words, len(words), end, unknown)
    levels = _ArpaReader(Path(path), names, marks).levels()
    return KneserNey(len(words), end, levels)


def read_arpa_with_words(path: str | Path) -> tuple[KneserNey, list[str]]:
    """The model in an ARPA file and its words, in the order of the file, <s> left out.

    The end mark is called <eos>, as in all vocabularies of words, and <UNK> is called <unk>. If the
    file does not have them they are added, with probability zero. A word <s>_ is called <s>, and
    </s>_ is called </s>: so `write_arpa` writes words that are called like marks.

    Raises ValueError if the file cannot be opened or is not an ARPA file.
    """
    reader = _ArpaReader(Path(path))
    levels = reader.levels()
    words = reader.words()
    return KneserNey(len(words), words.index(END), levels), words


def _packing(file: BinaryIO, suffix: str) -> BinaryIO:
    """A file that packs what is written to it into `file`, if a name with this suffix says so."""
    if suffix == ".gz":
        return gzip.GzipFile("", "wb", fileobj=file, mtime=0)  # type: ignore[return-value]
    return lzma.LZMAFile(file, "wb") if suffix == ".xz" else file  # type: ignore[return-value]


def _with_last_word(
    model: KneserNey, level: Level, contexts: list[bytes], names: list[bytes]
) -> list[bytes]:
    """The n-grams of a level as text, from those of the level below and the words."""
    before, last = np.divmod(level.keys, model.vocabulary_size + 1)
    pairs = zip(before.tolist(), last.tolist(), strict=True)
    return [contexts[c] + b" " + names[w] for c, w in pairs]


def _arpa_names(
    words: Sequence[str], vocabulary_size: int, end: int | None, unknown: int | None
) -> tuple[list[bytes], set[int]]:
    """The words as bytes for ARPA files, and the ids that a file need not have.

    Raises ValueError if they cannot be written there.
    """
    if len(words) != vocabulary_size:
        raise ValueError(f"there are {len(words)} words for a vocabulary of {vocabulary_size}")
    names = [word.encode() for word in words]
    may_lack = {id for id in (end, unknown) if id is not None}
    for mark, own in ((ARPA_START, None), (ARPA_END, end), (ARPA_UNKNOWN, unknown)):
        if own is None and mark == ARPA_UNKNOWN:
            continue  # then it is a word like any other
        for id in [id for id, name in enumerate(names) if name == mark and id != own]:
            names[id] = _free_name(mark, names)
            may_lack.add(id)
        if own is not None:
            names[own] = mark
    used = set()
    for name in names:
        if name.split() != [name]:
            raise ValueError(f"the word {name.decode()!r} is empty or has a space in it")
        if name in used:
            raise ValueError(f"the word {name.decode()} is there twice")
        used.add(name)
    return names, may_lack


def _free_name(mark: bytes, names: Sequence[bytes]) -> bytes:
    """The mark with as many `_` added as give a name that no word has."""
    taken = set(names)
    while (mark := mark + b"_") in taken:
        pass
    return mark


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
    """Reads an ARPA file; its errors name the line.

    names: the words; without them they are those of the file.
    may_lack: the ids among them that the file need not have.
    """

    def __init__(
        self, path: Path, names: list[bytes] | None = None, may_lack: Set[int] = frozenset()
    ) -> None:
        self._path, self._file, self._may_lack = path, read_lines(path), may_lack
        self._line_number = self._empty_lines = 0
        self._names: list[bytes] = [] if names is None else names
        self._closed = names is not None
        self._ids = {name: id for id, name in enumerate(self._names)}

    def levels(self) -> list[Level]:
        """The n-grams of all orders."""
        while self._line() != b"\\data\\":
            if self._line_number > MOST_BEFORE:
                raise self._error(f"there is no \\data\\ in the {MOST_BEFORE:,} lines up to here")
        sizes: list[int] = []
        while (line := self._line()).startswith(b"ngram "):
            order, _, count = line[6:].partition(b"=")
            if order.strip() != b"%d" % (len(sizes) + 1) or not _NUMBER.fullmatch(count):
                raise self._error("it does not say how many n-grams of the next order there are")
            sizes.append(int(count))
            if len(sizes) > MOST_ORDER:
                raise self._error(f"it is of a higher order than {MOST_ORDER}")
        if not sizes:
            raise self._error("it has no n-grams")
        levels: list[Level] = []
        for n, size in enumerate(sizes, 1):
            if line != b"\\%d-grams:" % n:
                raise self._error(f"the {n}-grams should begin here")
            levels.append(self._longer(n, size, levels) if levels else self._unigrams(size))
            line = self._line()
        if line != b"\\end\\":
            raise self._error("the n-grams should end here")
        return levels

    def words(self) -> list[str]:
        """The words of the file once it has been read, with our names for its marks."""
        names = list(self._names)
        for mark, ours in ((ARPA_END, END.encode()), (ARPA_UNKNOWN, UNKNOWN.encode())):
            if mark != ours:
                for id in [id for id, name in enumerate(names) if name == ours]:
                    names[id] = _free_name(ours, names)
                names[self._ids[mark]] = ours
        for mark in (ARPA_START, ARPA_END):  # words that `write_arpa` has given another name
            renamed = re.compile(re.escape(mark) + b"_+")
            found = [id for id, name in enumerate(names) if renamed.fullmatch(name)]
            if found:
                names[max(found, key=lambda id: len(names[id]))] = mark
        return [name.decode() for name in names]

    def _unigrams(self, size: int) -> Level:
        """The level of the words and <s>, in the order of their ids."""
        found: dict[bytes, tuple[float, float]] = {}
        held = 0
        for _ in range(size):
            (name,), prob, backoff = self._entry(1)
            if name == b"<UNK>" and name not in self._ids:
                name = ARPA_UNKNOWN
            if name in found:
                raise self._error(f"the 1-gram {_shown(name)} is there twice")
            if self._closed:
                self._id(name)
            elif (held := held + len(name) + PER_WORD) > MOST_WORDS:
                raise self._error(f"its words are more than {MOST_WORDS >> 20} MiB")
            else:
                self._check_text(name)
            found[name] = prob, backoff
        if not self._closed:
            marks = (name for name in (ARPA_END, ARPA_UNKNOWN) if name not in found)
            self._names = [*(name for name in found if name != ARPA_START), *marks]
            self._ids = {name: id for id, name in enumerate(self._names)}
            self._may_lack = {self._ids[ARPA_END], self._ids[ARPA_UNKNOWN]}
        for id, name in enumerate(self._names):
            if name not in found and id not in self._may_lack:
                raise self._error(f"the word {_shown(name)} is not among the 1-grams above")
        rows = [found.get(name, (-math.inf, 0.0)) for name in (*self._names, ARPA_START)]
        probs, backoffs = _from_log10(np.array(rows)).T
        return Level(np.arange(len(rows)), probs.copy(), backoffs.copy())

    def _longer(self, n: int, size: int, lower: list[Level]) -> Level:
        """The level of the n-grams of order n > 1; `lower` are the levels below.

        N-grams with an <unk> that is not in the vocabulary are left out. Now and then, as there are
        twice as many, it is checked that none is there twice, so that a few which are repeated
        without end do not fill the memory.
        """
        keys, values = np.zeros(0, dtype=np.int64), np.zeros((0, 2))
        new: list[tuple[np.ndarray, np.ndarray]] = []
        waiting = 0
        for first in range(0, size, N_GRAMS_AT_ONCE):
            new.append(self._part(n, min(N_GRAMS_AT_ONCE, size - first), lower))
            waiting += len(new[-1][0])
            if waiting >= len(keys) or first + N_GRAMS_AT_ONCE >= size:
                keys = np.concatenate([keys, *(part for part, _ in new)])
                values = np.concatenate([values, *(part for _, part in new)])
                order = np.argsort(keys, kind="stable")
                keys, values = keys[order], values[order]
                if (keys[1:] == keys[:-1]).any():
                    raise self._error("above it is an n-gram twice")
                new, waiting = [], 0
        probs, backoffs = _from_log10(values).T
        return Level(keys, probs.copy(), backoffs.copy())

    def _part(self, n: int, count: int, lower: list[Level]) -> tuple[np.ndarray, np.ndarray]:
        """The keys (N,) of the next n-grams, and log10 p and log10 backoff weights (N, 2)."""
        ids, values = array("q"), array("d")
        for _ in range(count):
            names, prob, backoff = self._entry(n)
            n_gram = [self._id(name) for name in names]
            if -1 not in n_gram:
                ids.extend(n_gram)
                values.extend((prob, backoff))
        table = np.array(ids, dtype=np.int64).reshape(-1, n)
        base, numbers = len(self._names) + 1, table[:, 0]
        for k in range(1, n):
            if (numbers < 0).any():
                raise self._error(f"above it is a {n}-gram without the {k}-gram it begins with")
            numbers = numbers * base + table[:, k]
            if k < len(lower):
                numbers = find_keys(lower[k].keys, numbers)
        return numbers, np.array(values).reshape(-1, 2)

    def _entry(self, n: int) -> tuple[list[bytes], float, float]:
        """The names of the next n-gram, log10 p and log10 of its backoff weight, 0 if it has none.

        Raises ValueError if the next line is no n-gram.
        """
        fields = self._line().split()
        if len(fields) not in (n + 1, n + 2):
            raise self._error(f"it is no {n}-gram with one or two numbers")
        names, last = fields[1 : n + 1], fields[n + 1] if len(fields) == n + 2 else b"0"
        try:
            prob, backoff = _number(fields[0]), _number(last)
        except ValueError:
            raise self._error("it has what should be a number and is not") from None
        if prob > 0 and names != [ARPA_START]:
            raise self._error("its probability is above one")
        if backoff > HIGHEST_BACKOFF:
            raise self._error(f"its backoff weight is above 10^{HIGHEST_BACKOFF:.0f}")
        return names, prob, backoff

    def _id(self, name: bytes) -> int:
        """The id of a word; the number of words for <s>, -1 for an <unk> that is no word."""
        id = self._ids.get(name)
        if id is not None:
            return id
        if name == ARPA_START:
            return len(self._names)
        if name in (ARPA_UNKNOWN, b"<UNK>"):
            return self._ids.get(ARPA_UNKNOWN, -1)
        raise self._error(f"the word {_shown(name)} is not in the vocabulary")

    def _check_text(self, name: bytes) -> None:
        try:
            right = name.decode().split() == [name.decode()]
        except UnicodeDecodeError:
            raise self._error(f"the word {_shown(name)} is not UTF-8") from None
        if not right:
            raise self._error(f"the word {_shown(name)!r} has a space in it")

    def _line(self) -> bytes:
        """The next line that is not empty."""
        for line in self._file:
            self._line_number += 1
            if self._line_number == 1 and line.startswith(PACKED):
                raise self._error("it is packed, so its name must end in .gz or .xz")
            if line := line.strip():
                return line
            self._empty_lines += 1
            if self._empty_lines > MOST_EMPTY:
                raise self._error(f"it has more than {MOST_EMPTY:,} empty lines")
        raise self._error("the file is cut short, or is no ARPA file")

    def _error(self, what: str) -> ValueError:
        place = f"line {self._line_number}"
        return ValueError(f"{self._path} is not a usable ARPA file: {place}: {what}")


def _number(text: bytes) -> float:
    """A number or minus infinity; ValueError for anything else."""
    number = float(text) if len(text) <= MOST_DIGITS else math.nan
    if math.isnan(number) or number == math.inf:
        raise ValueError("it is not a number")
    return number


def _shown(name: bytes) -> str:
    return name[:MOST_SHOWN].decode(errors="replace")
