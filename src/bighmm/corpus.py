"""Corpora: text in, files of token ids with a manifest out.

`prepare` takes a source (`sources` says which there are), makes or takes a tokenizer, and encodes
train, valid and test. Every line ends with an end mark.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bighmm.sources import SPLITS, Source, find_source, sha256_of
from bighmm.text import Tokenizer, Words, load_tokenizer, open_tokenizer

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
    found = find_source(source, valid_fraction, test_fraction)
    given = {"min_count": min_count, "max_size": max_size, "lowercase": lowercase, "split": split}
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


def open_corpus(folder: str | Path, *, verify: bool = False) -> Corpus:
    """A corpus that `prepare` wrote.

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
        ends = np.flatnonzero(corpus.split(name) == tokenizer.end)
        longest = int(np.diff(ends, prepend=-1).max()) - 1 if len(ends) else entry["tokens"]
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


class _Writer:
    """Encodes the lines of one split into its files, a batch of lines at a time."""

    def __init__(self, folder: Path, name: str, tokenizer: Tokenizer, dtype: str) -> None:
        self._tokenizer, self._dtype = tokenizer, dtype
        self._documents = folder / f"{name}.documents.bin"
        self.file = (folder / f"{name}.bin").open("wb")
        self._digest = hashlib.sha256()
        self._lines: list[str] = []
        self._starts: list[bool] = []
        self._pending = 0  # characters in self._lines
        self._offsets = array("q")
        self._count = self._unknown = self._tokens = 0

    def add(self, line: str, starts: bool) -> None:
        self._lines.append(line)
        self._starts.append(starts)
        self._pending += len(line)
        if len(self._lines) >= 4096 or self._pending >= 1 << 20:
            self._flush()

    def close(self) -> dict[str, Any]:
        """Finish the files; what the manifest says of the split."""
        self._flush()
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

    def _flush(self) -> None:
        encoded = self._tokenizer.encode_lines(self._lines)
        for starts, ids in zip(self._starts, encoded, strict=True):
            if starts:
                self._offsets.append(self._tokens)
            self._tokens += len(ids)
        flat = np.fromiter(itertools.chain.from_iterable(encoded), dtype=self._dtype)
        if self._tokenizer.unknown is not None:
            self._unknown += int(np.count_nonzero(flat == self._tokenizer.unknown))
        self._digest.update(flat.data)
        self.file.write(flat.data)
        self._count += len(encoded)
        self._lines, self._starts, self._pending = [], [], 0


def _write(
    folder: Path, source: Source, tokenizer: Tokenizer, described: dict, settings: dict
) -> None:
    dtype = "<u2" if tokenizer.size <= 1 << 16 else "<u4"
    with contextlib.ExitStack() as stack:
        writers = {name: _Writer(folder, name, tokenizer, dtype) for name in SPLITS}
        for writer in writers.values():
            stack.callback(writer.file.close)
        for name, starts, line in source.lines(SPLITS):
            writers[name].add(line, starts)
        splits = {name: writer.close() for name, writer in writers.items()}
    for name, split in splits.items():
        if not split["tokens"]:
            raise ValueError(
                f"the corpus {source.name} holds no text in {name}; a file with lines of text is "
                "needed"
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


def _known(name: str) -> str:
    if name not in SPLITS:
        raise ValueError(f"there is no split {name!r}; there are train, valid and test")
    return name


def _remove_leftovers(home: Path) -> None:
    """Work folders of processes that were killed: those untouched for a day."""
    for work in home.glob(".*-*.*"):
        if work.is_dir() and time.time() - work.stat().st_mtime > 24 * 3600:
            shutil.rmtree(work, ignore_errors=True)
