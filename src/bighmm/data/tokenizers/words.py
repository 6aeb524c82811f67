"""Tokenizers with a vocabulary of whole words, built from a training text."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bighmm.base.settings import Count, fill
from bighmm.data.tokenizers.protocol import END, UNKNOWN, checked_id, decode_lines, encode_text

_WORD = re.compile(
    r"<unk>|<eos>"
    r"|(?:[^\W\d_]\.){2,}(?!\w)"  # e.g.  U.S.
    r"|\w+(?:(?:['’.-](?=\w)|(?<=\d)[,:](?=\d))\w+)*"  # don't  os.path  3.5  1,000  12:30
    r"|\(\)|\.+|-+|=+|\*+|!+|\?+|[^\w\s]"  # setdefault()  ...  --
)
_CLOSING = ".,;:!?)]}%…’”»/"
_OPENING = "([{$£€#@“‘«¿¡/"


class Words:
    """A vocabulary of words with the marks `<eos>` and `<unk>`, ordered by decreasing counts.

    split: how a line is split into tokens. "whitespace" is for text whose tokens are separated by
        spaces; "words" is for raw text, which is split into punctuation and words (of which
        "don't", "3.5", "e.g." and "os.path" are one each).
    lowercase: whether text is lowercased first.

    Raises ValueError if a word is empty, occurs twice or holds whitespace, or if a mark is missing.
    """

    kind = "words"

    def __init__(
        self,
        words: Sequence[str],
        counts: Sequence[int] | None = None,
        *,
        split: str = "whitespace",
        lowercase: bool = False,
    ) -> None:
        _splitter(split, lowercase)  # raises ValueError for an unknown split
        if not words:
            raise ValueError("the word list is empty; it must hold <eos>, <unk> and words")
        for word in words:
            if word.split() != [word]:
                raise ValueError(f"the word {word!r} is empty or holds whitespace; neither may be")
        index = {word: id for id, word in enumerate(words)}
        if len(index) < len(words):
            word = next(word for word, n in Counter(words).items() if n > 1)
            raise ValueError(f"the word {word!r} is in the word list twice; once is right")
        for mark in (END, UNKNOWN):
            if mark not in index:
                raise ValueError(f"the word list lacks {mark}; it must hold <eos> and <unk>")
        counts = [0] * len(words) if counts is None else list(counts)
        if len(counts) != len(words):
            raise ValueError(f"there are {len(counts)} counts for {len(words)} words; one each")
        self.words, self.counts = list(words), counts
        self.split, self.lowercase = split, lowercase
        self.size = len(words)
        self.end: int = index[END]
        self.unknown: int | None = index[UNKNOWN]
        self._index = index

    @classmethod
    def build(
        cls,
        lines: Iterable[str | Iterable[str]],
        *,
        min_count: int = 1,
        max_size: int | None = None,
        split: str = "whitespace",
        lowercase: bool = False,
    ) -> Words:
        """The vocabulary of lines of text, or of lines that are already split into words.

        Words with fewer than `min_count` occurrences are left out, and then the rarest words until
        the vocabulary with its two marks has `max_size` entries. Occurrences of these words count
        for `<unk>`. `<eos>` counts once per line. Words of equal count are in alphabetical order.

        Raises ValueError for settings that are too small, or if no word is frequent enough.
        """
        if min_count < 1:
            raise ValueError(f"min_count is {min_count}; it must be at least 1")
        if max_size is not None and max_size < 3:
            raise ValueError(
                f"max_size is {max_size}; it must be at least 3: <eos>, <unk> and one word"
            )
        split_line = _splitter(split, lowercase)
        occurrences: Counter[str] = Counter()
        num_lines = 0
        for line in lines:
            if isinstance(line, str):
                occurrences.update(split_line(line))
            else:
                occurrences.update(word.lower() if lowercase else word for word in line)
            num_lines += 1
        marks = {END: num_lines + occurrences.pop(END, 0), UNKNOWN: occurrences.pop(UNKNOWN, 0)}
        frequent = [word for word, count in occurrences.items() if count >= min_count]
        if not frequent:
            raise ValueError(
                f"no word occurs {min_count} times or more; a longer text or a smaller min_count "
                "is needed"
            )
        frequent.sort(key=lambda word: (-occurrences[word], word))
        largest = None if max_size is None else max_size - 2
        counts = {word: occurrences[word] for word in frequent[:largest]}
        marks[UNKNOWN] += occurrences.total() - sum(counts.values())
        counts |= marks
        words = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(words, [counts[word] for word in words], split=split, lowercase=lowercase)

    def encode(self, text: str) -> list[int]:
        return encode_text(self, text)

    def split_line(self, line: str) -> list[str]:
        """The words of a line, known or not, as they are looked up."""
        return _splitter(self.split, self.lowercase)(line)

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        split_line = _splitter(self.split, self.lowercase)
        get, unknown, end = self._index.get, self._index[UNKNOWN], self.end
        return [[*[get(word, unknown) for word in split_line(line)], end] for line in lines]

    def decode(self, ids: Sequence[int]) -> str:
        def decode_line(line: list[int]) -> str:
            words = [self.words[id] for id in line]
            return _join(words) if self.split == "words" else " ".join(words)

        return decode_lines(self, ids, decode_line)

    def token(self, id: int) -> str:
        return self.words[checked_id(id, self.size)]

    def save(self, folder: Path) -> None:
        content = {
            "kind": self.kind,
            "split": self.split,
            "lowercase": self.lowercase,
            "words": self.words,
            "counts": self.counts,
        }
        text = json.dumps(content, ensure_ascii=False, indent=1)
        (Path(folder) / "vocab.json").write_text(text + "\n", encoding="utf-8")

    def fingerprint(self) -> str:
        content = json.dumps([self.kind, self.split, self.lowercase, self.words])
        return hashlib.sha256(content.encode()).hexdigest()

    @classmethod
    def from_json(cls, content: dict, path: Path) -> Words:
        """The vocabulary in the content of a file that `save` wrote; `path` is for messages."""
        found = fill(WordsFile, content, f"the vocabulary {path} is damaged: it")
        try:
            return cls(found.words, found.counts, split=found.split, lowercase=found.lowercase)
        except ValueError as error:
            raise ValueError(f"the vocabulary {path} is damaged: {error}") from None


@dataclass(frozen=True)
class WordsFile:
    """The content of vocab.json."""

    kind: Literal["words"]
    words: list[str]
    counts: list[Count] | None = None
    split: Literal["whitespace", "words"] = "whitespace"
    lowercase: bool = False


def _splitter(split: str, lowercase: bool) -> Callable[[str], list[str]]:
    """The function that splits a line into tokens; ValueError for an unknown `split`."""
    if split not in ("whitespace", "words"):
        raise ValueError(f"split is {split!r}; it must be 'whitespace' or 'words'")
    cut: Callable[[str], list[str]] = _WORD.findall if split == "words" else str.split
    return (lambda line: cut(line.lower())) if lowercase else cut


def _join(words: list[str]) -> str:
    """Words and punctuation as a line of text, with spaces where English has them.

    Straight quotes are taken as opening and closing quotes in turn.
    """
    pieces: list[str] = []
    without_space = True  # whether the next word follows without a space
    open_quotes: set[str] = set()
    for word in words:
        closes = word[0] in _CLOSING or word == "()" or word in open_quotes
        pieces += [word] if without_space or closes else [" ", word]
        without_space = word in _OPENING
        if word in ('"', "'"):
            without_space = word not in open_quotes
            open_quotes ^= {word}
    return "".join(pieces)
