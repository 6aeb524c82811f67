"""Corpora: text in, files of token ids with a manifest out.

`prepare` takes a source (`sources` says which there are), makes or takes a tokenizer, and encodes
train, valid and test. Every line ends with an end mark. `write_corpus` makes the same files of
documents that are token ids already; these may lack an end mark where they were cut off.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import shutil
import time
import uuid
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bighmm.base.files import replace_folder
from bighmm.data.sources import SPLITS, Source, find_source, sha256_of
from bighmm.data.tokenizers import Tokenizer, Words, load_tokenizer, open_tokenizer

FORMAT = 1  # raised whenever the same source would give other files
_DEFAULTS: dict[str, dict[str, Any]] = {
    "pydoc": {"min_count": 3, "lowercase": True, "split": "words"},
    "ptb": {"min_count": 1, "lowercase": False, "split": "whitespace"},
    "wikitext": {"min_count": 1, "lowercase": False, "split": "whitespace"},
    "text": {"min_count": 2, "lowercase": False, "split": "words"},
}


@dataclass(frozen=True, eq=False)
class Corpus:
    """A prepared corpus: a folder of token files, and the tokenizer that made them."""

    folder: Path
    tokenizer: Tokenizer
    manifest: dict[str, Any]

    def split(self, name: str) -> np.ndarray:
        """The ids of "train", "valid" or "test", memory-mapped: (tokens,) uint16 or uint32."""
        path = self.folder / f"{_known(name)}.bin"
        return np.memmap(path, dtype=np.dtype(self.manifest["dtype"]), mode="r")

    def documents(self, name: str) -> np.ndarray:
        """Where documents begin, then where the last one ends: (documents + 1,) int64."""
        return np.fromfile(self.folder / f"{_known(name)}.documents.bin", dtype="<i8")

    def words_and_counts(self) -> tuple[list[str], np.ndarray]:
        """Every token of the vocabulary as text, and how often it occurs in train: (V,)."""
        words = [self.tokenizer.token(i) for i in range(self.tokenizer.size)]
        return words, np.bincount(self.split("train"), minlength=len(words))

    @property
    def fingerprint(self) -> str:
        """sha256 over the ids and documents of all splits and over the tokenizer."""
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
    """The corpus of a source, encoded once and kept in the cache folder.

    source: see `sources`; or the folder of a prepared corpus, which is opened as it is.
    tokenizer: a tokenizer file to use; without one a word vocabulary is built on train, with
        `min_count`, `max_size`, `lowercase` and `split` as in `Words.build`. Left out, they follow
        the source: Penn Treebank and WikiText are split at whitespace and every word is kept;
        raw text is split into words and punctuation and a word must occur twice; "pydoc" is
        lowercased too and a word must occur three times.
    cache: where prepared corpora are kept; by default the environment variable BIGHMM_CACHE, else
        ~/.cache/bighmm. The corpus is a folder in it, named after a hash of the contents of the
        source and of all settings, that appears there whole or not at all.
    valid_fraction, test_fraction: for raw text without given splits only.

    Raises ValueError where the source or a setting is not usable.
    """
    given = {"min_count": min_count, "max_size": max_size, "lowercase": lowercase, "split": split}
    if is_prepared(source):
        return _as_it_is(Path(source).expanduser(), tokenizer, given)
    found = find_source(source, valid_fraction, test_fraction)
    made = None
    if tokenizer is not None:
        if extra := [name for name, value in given.items() if value is not None]:
            raise ValueError(
                f"{extra[0]} is for word vocabularies and does not go with a tokenizer file "
                f"({tokenizer}); leave one of the two out"
            )
        made = open_tokenizer(tokenizer)
        settings: dict[str, Any] = {"tokenizer": made.fingerprint()}
    else:
        settings = {name: _DEFAULTS[found.kind].get(name) for name in given}
        settings |= {name: value for name, value in given.items() if value is not None}

    described = found.description()
    identity = {name: value for name, value in described.items() if name != "name"}
    key = json.dumps([FORMAT, identity, settings], sort_keys=True)
    home = Path(cache or os.environ.get("BIGHMM_CACHE") or "~/.cache/bighmm").expanduser()
    folder = home / f"{found.kind}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    if folder.exists():
        try:
            return open_corpus(folder)
        except ValueError:  # damaged, and nothing in a cache is worth keeping then
            shutil.rmtree(folder)

    if next(found.lines(["train"]), None) is None:
        raise ValueError(f"the corpus {source} holds no text; a file with lines of text is needed")
    if made is None:
        train = (line for _, _, line in found.lines(["train"]))
        made = Words.build(train, **settings)
    work = home / f".{folder.name}.{uuid.uuid4().hex}"
    try:
        work.mkdir(parents=True)
        _remove_leftovers(home)
    except OSError as error:
        raise ValueError(
            f"the cache folder {home} cannot be written ({error.strerror}); set BIGHMM_CACHE to "
            "a folder that can"
        ) from None
    try:
        _write(work, found, made, described, settings)
        try:
            work.rename(folder)
        except OSError:  # another process was faster; what it wrote is the same
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return open_corpus(folder)


def write_corpus(
    folder: Path,
    tokenizer: Tokenizer,
    splits: Mapping[str, Iterable[np.ndarray]],
    described: dict[str, Any],
) -> Corpus:
    """A corpus of documents of ids, given for each split; the folder appears whole or not at all.

    described: what the manifest says of where they come from, with a "kind" and a "name".
    Raises ValueError where a split has no tokens, or an id is not the tokenizer's.
    """

    def fill(work: Path) -> None:
        lines = (
            (name, [True], [_checked(document, tokenizer.size)])
            for name in SPLITS
            for document in splits[name]
        )
        _write_lines(work, lines, tokenizer, described, {})

    replace_folder(folder, fill, keep_previous=False)
    return open_corpus(folder)


def is_prepared(source: str | Path) -> bool:
    """Whether a folder is a prepared corpus, not one of text."""
    folder = Path(source).expanduser()
    return (folder / "manifest.json").is_file() and (folder / "train.bin").is_file()


def open_corpus(folder: str | Path, *, verify: bool = False) -> Corpus:
    """A corpus that `prepare` or `write_corpus` wrote.

    ValueError if a file is missing or damaged. The sizes of token files are always checked against
    the manifest; with `verify` their sha256 too.
    """
    folder = Path(folder)
    path = folder / "manifest.json"
    if not path.is_file():
        raise ValueError(f"{folder} is not a prepared corpus; it has no manifest.json")
    try:
        manifest = json.loads(path.read_bytes())
        if manifest["format"] != FORMAT:
            raise ValueError(
                f"the corpus {folder} is of format {manifest['format']}, and this version reads "
                f"format {FORMAT}; prepare it again"
            )
        width = np.dtype(manifest["dtype"]).itemsize
        expected = {}
        for name in SPLITS:
            split = manifest["splits"][name]
            expected[f"{name}.bin"] = split["tokens"] * width, split["sha256"]
            size = (split["documents"] + 1) * 8
            expected[f"{name}.documents.bin"] = size, split["documents_sha256"]
        fingerprint = manifest["tokenizer"]["fingerprint"]
    except (KeyError, TypeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{path} is damaged ({type(error).__name__}: {error}); prepare the corpus again"
        ) from None
    for name, (size, digest) in expected.items():
        path = folder / name
        if not path.is_file():
            raise ValueError(f"the corpus {folder} lacks {name}; prepare it again")
        if path.stat().st_size != size:
            raise ValueError(
                f"{path} is damaged: it has {path.stat().st_size} bytes and should have {size}; "
                "prepare the corpus again"
            )
        if verify and sha256_of(path) != digest:
            raise ValueError(
                f"{path} is damaged: its sha256 is not the manifest's; prepare the corpus again"
            )
    tokenizer = load_tokenizer(folder)
    if tokenizer.fingerprint() != fingerprint:
        raise ValueError(
            f"the tokenizer in {folder} is not the one the corpus was encoded with; "
            "prepare the corpus again"
        )
    return Corpus(folder, tokenizer, manifest)


def describe(corpus: Corpus, *, most: int = 20) -> dict[str, Any]:
    """What a person wants to know about a corpus; JSON-serialisable."""
    tokenizer, manifest = corpus.tokenizer, corpus.manifest
    splits = {}
    for name in SPLITS:
        entry = manifest["splits"][name]
        tokens = corpus.split(name)
        bounds = sentence_bounds(tokens, tokenizer.end, corpus.documents(name))
        longest = int((np.diff(bounds) - (tokens[bounds[1:] - 1] == tokenizer.end)).max())
        splits[name] = {
            **{key: entry[key] for key in ("tokens", "lines", "documents", "unknown")},
            "unknown_rate": entry["unknown"] / entry["tokens"],
            "longest_line": longest,
        }
    train = corpus.split("train")
    counts = np.zeros(tokenizer.size, dtype=np.int64)
    for start in range(0, len(train), 1 << 22):
        counts += np.bincount(train[start : start + (1 << 22)], minlength=tokenizer.size)
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
    """Offsets (N+1,) of the sentences: each runs up to and with an end mark, or to the end.

    documents: where these begin, and a sentence with them even if there is no end mark before.
    """
    after = np.flatnonzero(np.asarray(tokens) == end) + 1
    if documents is not None:
        after = np.union1d(after, documents[1:])
    inner = after[after < len(tokens)]
    return np.concatenate([[0], inner, [len(tokens)]]).astype(np.int64)


class _Writer:
    """The files of one split, from lines of ids."""

    def __init__(self, folder: Path, name: str, unknown: int | None, dtype: str) -> None:
        self._unknown_id, self._dtype = unknown, dtype
        self._documents = folder / f"{name}.documents.bin"
        self.file = (folder / f"{name}.bin").open("wb")
        self._digest = hashlib.sha256()
        self._offsets = array("q")
        self._count = self._unknown = self._tokens = 0

    def add(self, lines: Sequence[Sequence[int]], starts: Sequence[bool]) -> None:
        """Append lines of ids; `starts` says which of them begin a document."""
        for begins, ids in zip(starts, lines, strict=True):
            if begins:
                self._offsets.append(self._tokens)
            self._tokens += len(ids)
        flat = np.fromiter(itertools.chain.from_iterable(lines), dtype=self._dtype)
        if self._unknown_id is not None:
            self._unknown += int(np.count_nonzero(flat == self._unknown_id))
        self._digest.update(flat.data)
        self.file.write(flat.data)
        self._count += len(lines)

    def close(self) -> dict[str, Any]:
        """Finish the files; what the manifest says of the split."""
        self.file.close()
        self._offsets.append(self._tokens)
        offsets = np.array(self._offsets, dtype="<i8").tobytes()
        self._documents.write_bytes(offsets)
        return {
            "tokens": self._tokens,
            "lines": self._count,
            "documents": len(self._offsets) - 1,
            "unknown": self._unknown,
            "sha256": self._digest.hexdigest(),
            "documents_sha256": hashlib.sha256(offsets).hexdigest(),
        }


def _write(
    folder: Path, source: Source, tokenizer: Tokenizer, described: dict, settings: dict
) -> None:
    """Encode a source into the files of a corpus."""
    lines = (
        (name, starts, tokenizer.encode_lines(texts))
        for name, starts, texts in _together(source.lines(SPLITS))
    )
    _write_lines(folder, lines, tokenizer, described, settings)


def _write_lines(
    folder: Path,
    lines: Iterable[tuple[str, Sequence[bool], Sequence[Sequence[int]]]],
    tokenizer: Tokenizer,
    described: dict,
    settings: dict,
) -> None:
    """All files of a corpus, from some lines of ids of a split at a time.

    With them comes which of them begin a document.
    """
    dtype = "<u2" if tokenizer.size <= 1 << 16 else "<u4"
    with contextlib.ExitStack() as stack:
        writers = {name: _Writer(folder, name, tokenizer.unknown, dtype) for name in SPLITS}
        for writer in writers.values():
            stack.callback(writer.file.close)
        for name, starts, ids in lines:
            writers[name].add(ids, starts)
        splits = {name: writer.close() for name, writer in writers.items()}
    for name, split in splits.items():
        if not split["tokens"]:
            raise ValueError(
                f"the corpus {described['name']} holds no text in {name}; a file with lines of "
                "text is needed"
            )
    tokenizer.save(folder)
    manifest = {
        "format": FORMAT,
        "source": described,
        "settings": settings,
        "tokenizer": {
            "kind": tokenizer.kind,
            "size": tokenizer.size,
            "fingerprint": tokenizer.fingerprint(),
        },
        "dtype": dtype,
        "splits": splits,
    }
    text = json.dumps(manifest, ensure_ascii=False, indent=1)
    (folder / "manifest.json").write_text(text + "\n", encoding="utf-8")


def _together(
    lines: Iterable[tuple[str, bool, str]],
) -> Iterator[tuple[str, list[bool], list[str]]]:
    """Lines of the same split, as many as are best encoded at once."""
    for name, group in itertools.groupby(lines, key=lambda line: line[0]):
        starts: list[bool] = []
        texts: list[str] = []
        size = 0  # characters
        for _, begins, text in group:
            starts.append(begins)
            texts.append(text)
            size += len(text)
            if len(texts) >= 4096 or size >= 1 << 20:
                yield name, starts, texts
                starts, texts, size = [], [], 0
        if texts:
            yield name, starts, texts


def _as_it_is(folder: Path, tokenizer: str | Path | None, given: dict[str, Any]) -> Corpus:
    """A prepared corpus, if nothing else is asked of it than it is."""
    if extra := [name for name, value in given.items() if value is not None]:
        raise ValueError(
            f"{folder} is a prepared corpus and has its vocabulary; leave out {extra[0]}"
        )
    corpus = open_corpus(folder)
    if tokenizer is not None:
        wanted = open_tokenizer(tokenizer).fingerprint()
        if wanted != corpus.tokenizer.fingerprint():
            raise ValueError(
                f"the prepared corpus {folder} has another vocabulary than {tokenizer}; prepare "
                "its text with that one"
            )
    return corpus


def _checked(ids: np.ndarray, size: int) -> Sequence[int]:
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < size:
        raise ValueError(f"a document has ids outside the vocabulary; ids are 0 to {size - 1}")
    return ids.tolist()


def _known(name: str) -> str:
    if name not in SPLITS:
        raise ValueError(f"there is no split {name!r}; there are train, valid and test")
    return name


def _remove_leftovers(home: Path) -> None:
    """Work folders of processes that were killed: those untouched for a day."""
    for work in home.glob(".*-*.*"):
        if work.is_dir() and time.time() - work.stat().st_mtime > 24 * 3600:
            shutil.rmtree(work, ignore_errors=True)
