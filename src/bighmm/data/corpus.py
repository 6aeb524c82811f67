"""Corpora: the token ids of a text in a folder, with the tokenizer and a manifest.

`prepare` reads a source of text (`sources` lists the kinds), builds or opens a tokenizer, and
encodes the splits train, valid and test, with an end mark after every line. `write_corpus` writes
the same files from documents of token ids; such a document may lack its end mark.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bighmm.base.files import replace_folder
from bighmm.base.json_files import read_object
from bighmm.base.locks import remove_leftovers
from bighmm.base.settings import Count, Positive, fill, shown
from bighmm.base.verified import open_numbers
from bighmm.data.corpus_files import FORMAT, dtype_of, encode_source, write_files
from bighmm.data.counting import count_tokens
from bighmm.data.sources import SPLITS, Source, find_source
from bighmm.data.tokenizers import Tokenizer, Words, load_tokenizer, open_tokenizer

_DEFAULTS: dict[str, dict[str, Any]] = {
    "pydoc": {"min_count": 3, "lowercase": True, "split": "words"},
    "ptb": {"min_count": 1, "lowercase": False, "split": "whitespace"},
    "wikitext": {"min_count": 1, "lowercase": False, "split": "whitespace"},
    "text": {"min_count": 2, "lowercase": False, "split": "words"},
}


@dataclass(frozen=True, eq=False)
class Corpus:
    """A prepared corpus: a folder of token ids, and the tokenizer that encoded them."""

    folder: Path
    tokenizer: Tokenizer
    manifest: dict[str, Any]

    def split(self, name: str) -> np.ndarray:
        """The ids of "train", "valid" or "test", memory-mapped: (tokens,) uint16 or uint32."""
        path = self.folder / f"{_checked_split(name)}.bin"
        return np.memmap(path, dtype=np.dtype(self.manifest["dtype"]), mode="r")

    def documents(self, name: str) -> np.ndarray:
        """Offsets where documents begin, and last where the last one ends: (documents + 1,)."""
        return np.fromfile(self.folder / f"{_checked_split(name)}.documents.bin", dtype="<i8")

    def words_and_counts(self) -> tuple[list[str], np.ndarray]:
        """The tokens of the vocabulary as strings, and their counts (V,) in train."""
        words = [self.tokenizer.token(i) for i in range(self.tokenizer.size)]
        return words, count_tokens(self.split("train"), len(words))

    @property
    def fingerprint(self) -> str:
        """The SHA-256 of the tokenizer and of the ids and documents of all splits."""
        parts = [self.manifest["format"], self.manifest["tokenizer"]["fingerprint"]]
        for name in SPLITS:
            split = self.manifest["splits"][name]
            parts += [split["sha256"], split["documents_sha256"]]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def prepare(
    source: str | Path,
    *,
    tokenizer: str | Path | None = None,
    min_count: int | None = None,
    max_size: int | None = None,
    lowercase: bool | None = None,
    split: str | None = None,
    cache: str | Path | None = None,
    valid_fraction: float = 0.05,
    test_fraction: float = 0.05,
) -> Corpus:
    """The corpus of a source, encoded on the first call and cached.

    source: see `sources`; or the folder of a prepared corpus, which is only opened.
    tokenizer: a tokenizer file to use. Without one, a vocabulary of words is built from train, with
        `min_count`, `max_size`, `lowercase` and `split` as in `Words.build`. Their defaults depend
        on the source: Penn Treebank and WikiText are split at whitespace and keep every word; raw
        text is split into words and punctuation and keeps words that occur twice; "pydoc" is also
        lowercased and keeps words that occur three times.
    cache: the folder of the cache; by default that of the environment variable BIGHMM_CACHE, else
        ~/.cache/bighmm. The corpus is a folder in it, named after a hash of the text and of all
        settings, and is written atomically. Processes that need the same one wait for the first,
        which writes it.
    valid_fraction, test_fraction: shares of the characters of raw text that has no splits.

    Raises ValueError if the source or a setting cannot be used.
    """
    options = {"min_count": min_count, "max_size": max_size, "lowercase": lowercase, "split": split}
    if is_prepared(source):
        return _open_prepared(Path(source).expanduser(), tokenizer, options)
    text = find_source(source, valid_fraction, test_fraction)
    vocabulary = None
    if tokenizer is not None:
        if extra := [name for name, value in options.items() if value is not None]:
            raise ValueError(
                f"{extra[0]} is for word vocabularies and does not go with a tokenizer file "
                f"({tokenizer}); leave one of the two out"
            )
        vocabulary = open_tokenizer(tokenizer)
        settings: dict[str, Any] = {"tokenizer": vocabulary.fingerprint()}
    else:
        settings = {name: _DEFAULTS[text.kind].get(name) for name in options}
        settings |= {name: value for name, value in options.items() if value is not None}

    description = text.description()
    identity = {name: value for name, value in description.items() if name != "name"}
    key = json.dumps([FORMAT, identity, settings], sort_keys=True)
    home = Path(cache or os.environ.get("BIGHMM_CACHE") or "~/.cache/bighmm").expanduser()
    folder = home / f"{text.kind}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    if (cached := _cached(folder)) is not None:
        return cached
    if next(text.lines(["train"]), None) is None:
        raise ValueError(f"the corpus {source} holds no text; a file with lines of text is needed")
    if vocabulary is None:
        vocabulary = Words.build((line for _, _, line in text.lines(["train"])), **settings)
    _write_to_cache(folder, text, vocabulary, description, settings)
    return open_corpus(folder)


def write_corpus(
    folder: Path,
    tokenizer: Tokenizer,
    splits: Mapping[str, Iterable[np.ndarray]],
    description: dict[str, Any],
) -> Corpus:
    """A corpus of documents of token ids, one array (tokens,) each, written to `folder` atomically.

    description: the source as the manifest describes it, with a "kind" and a "name".

    Raises ValueError if a split has no tokens, or an id is not in the vocabulary.
    """

    def fill(work: Path) -> None:
        lines = (
            (name, [True], [_checked_ids(document, tokenizer.size)])
            for name in SPLITS
            for document in splits[name]
        )
        write_files(work, lines, tokenizer, description, {})

    replace_folder(folder, fill, keep_previous=False)
    return open_corpus(folder)


def is_prepared(source: str | Path) -> bool:
    """Whether `source` is the folder of a prepared corpus, rather than text."""
    folder = Path(source).expanduser()
    return (
        bool(str(source))
        and (folder / "manifest.json").is_file()
        and (folder / "train.bin").is_file()
    )


def open_corpus(folder: str | Path, *, verify: bool = False) -> Corpus:
    """The corpus in a folder that `prepare` or `write_corpus` wrote.

    Raises ValueError if a file is missing or damaged: its size and SHA-256 are those of the
    manifest, and ids are in the vocabulary. A process reads a file once for that, unless it changes
    or `verify` is given.
    """
    folder = Path(folder)
    path = folder / "manifest.json"
    if not path.is_file():
        raise ValueError(f"{folder} is not a prepared corpus; it has no manifest.json")
    try:
        found = read_object(path)
        if "format" in found and found["format"] != FORMAT:
            raise ValueError(
                f"the corpus {folder} is of format {shown(found['format'])}, and this version "
                f"reads format {FORMAT}"
            )
        manifest = fill(Manifest, found, f"{path} is damaged: it")
        tokenizer = load_tokenizer(folder)
        _check_vocabulary(folder, manifest, tokenizer)
        for name in SPLITS:
            _check_files(folder, name, manifest, verify)
    except ValueError as error:
        raise ValueError(f"{error}; prepare the corpus again") from None
    return Corpus(folder, tokenizer, found)


def describe(corpus: Corpus, *, most: int = 20) -> dict[str, Any]:
    """Figures about a corpus, JSON-serialisable, with the `most` most frequent tokens."""
    tokenizer, manifest = corpus.tokenizer, corpus.manifest
    splits = {}
    for name in SPLITS:
        entry = manifest["splits"][name]
        tokens = corpus.split(name)
        bounds = sentence_bounds(tokens, tokenizer.end, corpus.documents(name))
        longest = int((np.diff(bounds) - (tokens[bounds[1:] - 1] == tokenizer.end)).max())
        splits[name] = {
            **{key: entry[key] for key in ("tokens", "lines", "documents")},
            "unknown_tokens": entry["unknown"],
            "unknown_rate": entry["unknown"] / entry["tokens"],
            "longest_line": longest,
        }
    counts = count_tokens(corpus.split("train"), tokenizer.size)
    order = np.argsort(-counts, kind="stable")[:most]
    return {
        "source": manifest["source"],
        "folder": str(corpus.folder),
        "fingerprint": corpus.fingerprint,
        "settings": manifest["settings"],
        "tokenizer": manifest["tokenizer"],
        "splits": splits,
        "most_frequent": [
            {"token": tokenizer.token(int(id)), "count": int(counts[id])} for id in order
        ],
    }


def sentence_bounds(
    tokens: np.ndarray, end: int, documents: np.ndarray | None = None
) -> np.ndarray:
    """Offsets (N+1,) of N sentences: sentence i is tokens[bounds[i] : bounds[i + 1]].

    A sentence ends after an end mark, and at the end of `tokens` (T,).
    documents: offsets of documents, which also end sentences.
    """
    after = np.flatnonzero(np.asarray(tokens) == end) + 1
    if documents is not None:
        after = np.union1d(after, documents[1:])
    inner = after[after < len(tokens)]
    return np.concatenate([[0], inner, [len(tokens)]]).astype(np.int64)


def _open_prepared(folder: Path, tokenizer: str | Path | None, options: dict[str, Any]) -> Corpus:
    """A prepared corpus; ValueError if another vocabulary than its own is requested."""
    if extra := [name for name, value in options.items() if value is not None]:
        raise ValueError(
            f"{folder} is a prepared corpus and has its vocabulary; leave out {extra[0]}"
        )
    corpus = open_corpus(folder)
    if tokenizer is not None:
        requested = open_tokenizer(tokenizer).fingerprint()
        if requested != corpus.tokenizer.fingerprint():
            raise ValueError(
                f"the prepared corpus {folder} has another vocabulary than {tokenizer}; prepare "
                "its text with that one"
            )
    return corpus


def _cached(folder: Path) -> Corpus | None:
    """The corpus in a folder of the cache; None if it has to be written, as it is not whole."""
    try:
        return open_corpus(folder)
    except (ValueError, FileNotFoundError):  # the latter while another process replaces it
        return None


def _write_to_cache(
    folder: Path, source: Source, tokenizer: Tokenizer, description: dict, settings: dict
) -> None:
    """Encode a source into the folder of a cache, unless another process has done so meanwhile."""

    def fill(work: Path) -> None:
        encode_source(work, source, tokenizer, description, settings)

    with writing_cache(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder.parent)
        replace_folder(
            folder, fill, keep_previous=False, unless=lambda: _cached(folder) is not None
        )


@contextlib.contextmanager
def writing_cache(home: Path) -> Iterator[None]:
    """Context in which the cache `home` is written.

    Raises ValueError with one sentence, that says what to do, where that cannot be done.
    """
    try:
        yield
    except OSError as error:
        at = Path(error.filename or home)
        if not (at.is_relative_to(home) or home.is_relative_to(at)):
            raise  # another file, such as one of the text
        raise ValueError(
            f"the cache folder {home} cannot be written ({error.strerror or error}); make room "
            "there, or set the environment variable BIGHMM_CACHE to another folder"
        ) from None


@dataclass(frozen=True)
class SplitEntry:
    """What the manifest says of a split."""

    tokens: Positive
    lines: Count
    documents: Count
    unknown: Count
    sha256: str
    documents_sha256: str


@dataclass(frozen=True)
class Splits:
    train: SplitEntry
    valid: SplitEntry
    test: SplitEntry


@dataclass(frozen=True)
class TokenizerEntry:
    kind: str
    size: Positive
    fingerprint: str


@dataclass(frozen=True)
class Manifest:
    """The content of manifest.json."""

    format: int
    source: dict[str, Any]
    settings: dict[str, Any]
    tokenizer: TokenizerEntry
    dtype: Literal["<u2", "<u4"]
    splits: Splits

    def __post_init__(self) -> None:
        if not all(isinstance(self.source.get(name), str) for name in ("kind", "name")):
            raise ValueError("the manifest does not give its source a kind and a name")


def _check_vocabulary(folder: Path, manifest: Manifest, tokenizer: Tokenizer) -> None:
    entry = manifest.tokenizer
    known = (tokenizer.fingerprint(), tokenizer.kind, tokenizer.size)
    if known != (entry.fingerprint, entry.kind, entry.size):
        raise ValueError(f"the tokenizer in {folder} is not the one the corpus was encoded with")
    if manifest.dtype != dtype_of(tokenizer):
        raise ValueError(
            f"{folder / 'manifest.json'} is damaged: dtype is {manifest.dtype} for "
            f"{tokenizer.size} words"
        )


def _check_files(folder: Path, name: str, manifest: Manifest, verify: bool) -> None:
    """Raises ValueError if a file of a split is missing or damaged."""
    split: SplitEntry = getattr(manifest.splits, name)
    for file in (f"{name}.bin", f"{name}.documents.bin"):
        if not (folder / file).is_file():
            raise ValueError(f"the corpus {folder} lacks {file}")
    open_numbers(
        folder / f"{name}.bin",
        manifest.dtype,
        split.tokens,
        below=manifest.tokenizer.size,
        sha256=split.sha256,
        again=verify,
    )
    path = folder / f"{name}.documents.bin"
    bounds = open_numbers(
        path,
        "<i8",
        split.documents + 1,
        below=split.tokens + 1,
        sha256=split.documents_sha256,
        again=verify,
    )
    if bounds[0] != 0 or bounds[-1] != split.tokens or (np.diff(bounds) < 0).any():
        raise ValueError(f"{path} is damaged: it does not give the documents of {name}.bin")


def _checked_ids(ids: np.ndarray, size: int) -> np.ndarray:
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < size:
        raise ValueError(f"a document has ids outside the vocabulary; ids are 0 to {size - 1}")
    return ids


def _checked_split(name: str) -> str:
    if name not in SPLITS:
        raise ValueError(f"there is no split {name!r}; there are train, valid and test")
    return name
