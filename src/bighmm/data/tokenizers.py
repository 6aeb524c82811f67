"""Tokenizers: text to token ids and back, behind one protocol.

A newline in the text is the end mark among the ids, for every kind of tokenizer:
"a b" is [a, b] and "a b\\n" is [a, b, end].

- `Words`: a word vocabulary built from a training text.
- `Subwords`: a tokenizer file of the Hugging Face `tokenizers` library.
- `SentencePieces`: a SentencePiece model (needs the extra `bighmm[sentencepiece]`).
"""

from __future__ import annotations

import hashlib
import json
import lzma
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

import tokenizers

END = "<eos>"
UNKNOWN = "<unk>"


class Tokenizer(Protocol):
    kind: str  # "words", "tokenizers" or "sentencepiece"
    size: int  # V; ids are 0 .. V-1
    end: int  # the id of the end mark
    unknown: int | None  # the id of what is not in the vocabulary

    def encode(self, text: str) -> list[int]:
        """The ids of a text; each newline in it is the end mark."""

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        """The ids of each line, every one with its end mark; no line holds a newline."""

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids: the inverse of `encode` up to unknown words and spacing."""

    def token(self, id: int) -> str:
        """One token as it is shown to a person."""

    def save(self, folder: Path) -> None:
        """Write into an existing folder what `load_tokenizer` reads."""

    def fingerprint(self) -> str:
        """sha256 of what decides how text is encoded."""


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer saved in a folder; ValueError where there is none or it is damaged."""
    folder = Path(folder)
    if (folder / "tokenizer.json").is_file():
        end = None
        config = folder / "tokenizer_config.json"
        if config.is_file():
            end = _json(config, config.read_bytes()).get("eos_token")
            end = end.get("content") if isinstance(end, dict) else end
        path = folder / "tokenizer.json"
        return Subwords(_read(path), end=end, name=str(path))
    for name in ("tokenizer.model", "vocab.json"):
        if (folder / name).is_file():
            return open_tokenizer(folder / name)
    raise ValueError(
        f"there is no tokenizer in {folder}: one of vocab.json, tokenizer.json and "
        "tokenizer.model is expected"
    )


def open_tokenizer(path: str | Path) -> Tokenizer:
    """The tokenizer of a file (.json or .model, plain or .xz) or of a folder that holds one.

    ValueError if there is no such file, or it is not a tokenizer of a known kind.
    """
    path = Path(path)
    if path.is_dir():
        return load_tokenizer(path)
    if not path.is_file():
        raise ValueError(
            f"the tokenizer {path} does not exist; give a tokenizers file (.json), a "
            "SentencePiece model (.model) or a folder with one of them"
        )
    name = path.name.removesuffix(".xz")
    if name.endswith(".model"):
        return SentencePieces(_read(path), name=str(path))
    if not name.endswith(".json"):
        raise ValueError(
            f"the tokenizer {path} is of an unknown kind; a tokenizers file (.json) or a "
            "SentencePiece model (.model) is expected"
        )
    content = _read(path)
    if (found := _json(path, content)).get("kind") == "words":
        return Words._from_json(found, path)
    return Subwords(content, name=str(path))


class Words:
    """A word vocabulary with `<eos>` and `<unk>`; ids follow decreasing counts.

    split: "whitespace" for text whose tokens stand apart already, "words" for raw text, which
        is cut into words ("don't", "3.5", "e.g.", "os.path" stay whole) and punctuation.
    lowercase: whether text is lowercased first.
    Raises ValueError for words that are empty, doubled or hold whitespace, or lack the two marks.
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
        _splitter(split, lowercase)  # raises for a split it does not know
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
        """The vocabulary of lines of text, or of lines that are iterables of words already.

        Words seen fewer than `min_count` times are left out, then the rarest until there are
        `max_size` entries, the two marks included; their occurrences count for `<unk>`. `<eos>`
        counts once per line. Words of equal count are in alphabetical order.
        """
        if min_count < 1:
            raise ValueError(f"min_count is {min_count}; it must be at least 1")
        if max_size is not None and max_size < 3:
            raise ValueError(
                f"max_size is {max_size}; it must be at least 3: <eos>, <unk> and one word"
            )
        words_of = _splitter(split, lowercase)
        seen: Counter[str] = Counter()
        ends = 0
        for line in lines:
            if isinstance(line, str):
                seen.update(words_of(line))
            else:
                seen.update(word.lower() if lowercase else word for word in line)
            ends += 1
        marks = {END: ends + seen.pop(END, 0), UNKNOWN: seen.pop(UNKNOWN, 0)}
        kept = [word for word, count in seen.items() if count >= min_count]
        if not kept:
            raise ValueError(
                f"no word occurs {min_count} times or more; a longer text or a smaller min_count "
                "is needed"
            )
        kept.sort(key=lambda word: (-seen[word], word))
        counts = {word: seen[word] for word in kept[: None if max_size is None else max_size - 2]}
        marks[UNKNOWN] += seen.total() - sum(counts.values())
        counts |= marks
        words = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(words, [counts[word] for word in words], split=split, lowercase=lowercase)

    def encode(self, text: str) -> list[int]:
        return _encode(self, text)

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        words_of = _splitter(self.split, self.lowercase)
        get, unknown, end = self._index.get, self._index[UNKNOWN], self.end
        return [[*[get(word, unknown) for word in words_of(line)], end] for line in lines]

    def decode(self, ids: Sequence[int]) -> str:
        def text(run: list[int]) -> str:
            words = [self.words[id] for id in run]
            return _spaced(words) if self.split == "words" else " ".join(words)

        return _decode(self, ids, text)

    def token(self, id: int) -> str:
        return self.words[_checked(id, self.size)]

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
    def _from_json(cls, found: dict, path: Path) -> Words:
        words, counts = found.get("words"), found.get("counts")
        split, lowercase = found.get("split", "whitespace"), found.get("lowercase", False)
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ValueError(f'the vocabulary {path} is damaged: "words" must be a list of words')
        if not isinstance(counts, list | None) or not all(isinstance(n, int) for n in counts or []):
            raise ValueError(f'the vocabulary {path} is damaged: "counts" must be whole numbers')
        try:
            return cls(words, counts, split=split, lowercase=bool(lowercase))
        except ValueError as error:
            raise ValueError(f"the vocabulary {path} is damaged: {error}") from None


class Subwords:
    """A tokenizer of the Hugging Face `tokenizers` library, from the content of its file.

    `end` names the end mark; without it, the first of the usual names in the vocabulary is taken.
    `name` stands for the file in messages. Raises ValueError if the content is not a tokenizer
    or has no end mark.
    """

    kind = "tokenizers"
    _ENDS = (
        END,
        "</s>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|end▁of▁sentence|>",
        "<｜end▁of▁sentence｜>",
        "<end_of_text>",
        "[EOS]",
        "[SEP]",
    )
    _UNKNOWNS = (UNKNOWN, "[UNK]", "<|unk|>")

    def __init__(
        self, content: bytes, *, end: str | None = None, name: str = "tokenizer.json"
    ) -> None:
        try:
            self._model = tokenizers.Tokenizer.from_str(content.decode())
        except Exception as error:  # the library raises nothing narrower
            reason = str(error).split("\n")[0]
            raise ValueError(
                f"{name} is damaged or is not a file of the tokenizers library: {reason}"
            ) from None
        self._model.no_truncation()
        self._model.no_padding()
        index = self._model.get_vocab(with_added_tokens=True)
        ends = self._ENDS if end is None else (end,)
        marks = [index[mark] for mark in ends if mark in index]
        if not marks:
            raise ValueError(
                f"the tokenizer {name} has no end mark; one of {', '.join(ends)} must be in its "
                "vocabulary"
            )
        self.end: int = marks[0]
        self.size = max(index.values()) + 1  # ids may have gaps
        named = [index[mark] for mark in self._UNKNOWNS if mark in index]
        self.unknown: int | None = named[0] if named else None
        self._content = content

    @property
    def decoding(self) -> list[str]:
        """The steps by which tokens become text, as the tokenizers library names them."""
        decoder = json.loads(self._content).get("decoder") or {}
        return [step["type"] for step in decoder.get("decoders", [decoder]) if "type" in step]

    @property
    def marks(self) -> set[int]:
        """Ids that spell nothing: special tokens, and gaps between the ids."""
        added = self._model.get_added_tokens_decoder()
        gaps = set(range(self.size)) - set(self._model.get_vocab(with_added_tokens=True).values())
        return gaps | {id for id, token in added.items() if token.special}

    def encode(self, text: str) -> list[int]:
        return _encode(self, text)

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        made = self._model.encode_batch_fast(list(lines), add_special_tokens=False)
        return [[*line.ids, self.end] for line in made]

    def decode(self, ids: Sequence[int]) -> str:
        return _decode(self, ids, lambda run: self._model.decode(run, skip_special_tokens=False))

    def token(self, id: int) -> str:
        return self._model.id_to_token(_checked(id, self.size)) or f"<{id}>"

    def save(self, folder: Path) -> None:
        (Path(folder) / "tokenizer.json").write_bytes(self._content)
        config = {"kind": self.kind, "eos_token": self.token(self.end)}
        text = json.dumps(config, ensure_ascii=False, indent=1)
        (Path(folder) / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")

    def fingerprint(self) -> str:
        mark = f"\0{self.end}".encode()
        return hashlib.sha256(self._content + mark).hexdigest()


class SentencePieces:
    """A SentencePiece model, from the content of its file; its own end mark is used.

    Raises ValueError if the content is not a model or has no end mark, or where sentencepiece
    is not installed.
    """

    kind = "sentencepiece"

    def __init__(self, content: bytes, *, name: str = "tokenizer.model") -> None:
        try:
            import sentencepiece
        except ImportError:
            raise ValueError(
                f"{name} is a SentencePiece model, which needs the package sentencepiece: "
                'install "bighmm[sentencepiece]"'
            ) from None
        self._model = sentencepiece.SentencePieceProcessor()
        try:
            self._model.LoadFromSerializedProto(content)
        except Exception:  # the library raises nothing narrower
            raise ValueError(f"{name} is damaged or is not a SentencePiece model") from None
        self.size: int = self._model.get_piece_size()
        self.end: int = self._model.eos_id()
        if self.end < 0:
            raise ValueError(f"the SentencePiece model {name} has no end mark (eos); it needs one")
        self.unknown: int | None = self._model.unk_id()
        self._content = content

    def encode(self, text: str) -> list[int]:
        return _encode(self, text)

    def encode_lines(self, lines: Sequence[str]) -> list[list[int]]:
        return [[*ids, self.end] for ids in self._model.encode(list(lines), out_type=int)]

    def decode(self, ids: Sequence[int]) -> str:
        return _decode(self, ids, self._model.decode)

    def token(self, id: int) -> str:
        return self._model.id_to_piece(_checked(id, self.size))

    def save(self, folder: Path) -> None:
        (Path(folder) / "tokenizer.model").write_bytes(self._content)

    def fingerprint(self) -> str:
        return hashlib.sha256(self._content).hexdigest()


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    ids = [id for line in tokenizer.encode_lines(text.split("\n")) for id in line]
    return ids[:-1]  # what follows the last newline is not a whole line


def _decode(tokenizer: Tokenizer, ids: Sequence[int], text: Callable[[list[int]], str]) -> str:
    runs: list[list[int]] = [[]]
    for id in ids:
        if (id := _checked(id, tokenizer.size)) == tokenizer.end:
            runs.append([])
        else:
            runs[-1].append(id)
    return "\n".join(text(run) if run else "" for run in runs)


def _checked(id: int, size: int) -> int:
    if not 0 <= id < size:
        raise ValueError(f"the token id {id} is outside the vocabulary; ids are 0 to {size - 1}")
    return int(id)


def _read(path: Path) -> bytes:
    if path.suffix != ".xz":
        return path.read_bytes()
    try:
        return lzma.decompress(path.read_bytes())
    except lzma.LZMAError:
        raise ValueError(f"{path} is damaged or is not an xz file") from None


def _json(path: Path, content: bytes) -> dict:
    try:
        found = json.loads(content)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: it is not JSON ({error})") from None
    if not isinstance(found, dict):
        raise ValueError(f"{path} is damaged: it holds no JSON object")
    return found


_WORD = re.compile(
    r"<unk>|<eos>"
    r"|(?:[^\W\d_]\.){2,}(?!\w)"  # e.g.  U.S.
    r"|\w+(?:(?:['’.-](?=\w)|(?<=\d)[,:](?=\d))\w+)*"  # don't  os.path  3.5  1,000  12:30
    r"|\(\)|\.+|-+|=+|\*+|!+|\?+|[^\w\s]"  # setdefault()  ...  --
)
_CLOSING = ".,;:!?)]}%…’”»/"
_OPENING = "([{$£€#@“‘«¿¡/"


def _splitter(split: str, lowercase: bool) -> Callable[[str], list[str]]:
    if split not in ("whitespace", "words"):
        raise ValueError(f"split is {split!r}; it must be 'whitespace' or 'words'")
    cut: Callable[[str], list[str]] = _WORD.findall if split == "words" else str.split
    return (lambda line: cut(line.lower())) if lowercase else cut


def _spaced(words: list[str]) -> str:
    """Words and punctuation as a line of text; a straight quote opens and closes by turns."""
    pieces: list[str] = []
    glued = True  # whether the next word follows without a space
    open_quotes: set[str] = set()
    for word in words:
        closes = word[0] in _CLOSING or word == "()" or word in open_quotes
        pieces += [word] if glued or closes else [" ", word]
        glued = word in _OPENING
        if word in ('"', "'"):
            glued = word not in open_quotes
            open_quotes ^= {word}
    return "".join(pieces)
