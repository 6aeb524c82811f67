"""The files of a corpus, written while the text is read, so that it need not fit in memory.

{train,valid,test}.bin            token ids, little-endian uint16, or uint32 for large vocabularies
{train,valid,test}.documents.bin  offsets where documents begin, and last where the last one ends,
                                  little-endian int64
manifest.json                     source, settings, tokenizer, and sizes and hashes of all splits
                                  and of itself

The files of the tokenizer are in the same folder.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bighmm.base.files import write_sealed
from bighmm.data.sources import SPLITS, Source
from bighmm.data.tokenizers import Tokenizer

FORMAT = 1  # increased whenever the same source would give other files


def encode_source(
    folder: Path, source: Source, tokenizer: Tokenizer, description: dict, settings: dict
) -> None:
    """Write all files of a corpus from a source of text; arguments as in `write_files`."""
    lines = (
        (name, starts, tokenizer.encode_lines(texts))
        for name, starts, texts in _chunks(source.lines(SPLITS))
    )
    write_files(folder, lines, tokenizer, description, settings)


def write_files(
    folder: Path,
    lines: Iterable[tuple[str, Sequence[bool], Sequence[Sequence[int] | np.ndarray]]],
    tokenizer: Tokenizer,
    description: dict,
    settings: dict,
) -> None:
    """Write all files of a corpus.

    lines: chunks of lines. A chunk is the name of its split, for each line whether it begins a
        document, and the token ids of each line.
    description, settings: the source and the settings as the manifest describes them.

    Raises ValueError if a split has no tokens.
    """
    dtype = dtype_of(tokenizer)
    with contextlib.ExitStack() as stack:
        writers = {name: _SplitWriter(folder, name, tokenizer.unknown, dtype) for name in SPLITS}
        for writer in writers.values():
            stack.callback(writer.file.close)
        for name, starts, ids in lines:
            writers[name].add(ids, starts)
        splits = {name: writer.close() for name, writer in writers.items()}
    for name, split in splits.items():
        if not split["tokens"]:
            raise ValueError(
                f"the corpus {description['name']} holds no text in {name}; a file with lines of "
                "text is needed"
            )
    tokenizer.save(folder)
    manifest = {
        "format": FORMAT,
        "source": description,
        "settings": settings,
        "tokenizer": {
            "kind": tokenizer.kind,
            "size": tokenizer.size,
            "fingerprint": tokenizer.fingerprint(),
        },
        "dtype": dtype,
        "splits": splits,
    }
    write_sealed(folder / "manifest.json", manifest)


def dtype_of(tokenizer: Tokenizer) -> str:
    """The type of token ids in files."""
    return "<u2" if tokenizer.size <= 1 << 16 else "<u4"


class _SplitWriter:
    """Writes the files of one split from lines of token ids."""

    def __init__(self, folder: Path, name: str, unknown: int | None, dtype: str) -> None:
        self._unknown_id, self._dtype = unknown, dtype
        self._documents = folder / f"{name}.documents.bin"
        self.file = (folder / f"{name}.bin").open("wb")
        self._digest = hashlib.sha256()
        self._offsets = array("q")
        self._lines = self._unknown = self._tokens = 0

    def add(self, lines: Sequence[Sequence[int] | np.ndarray], starts: Sequence[bool]) -> None:
        """Append lines of token ids; `starts` says which of them begin a document."""
        for begins, ids in zip(starts, lines, strict=True):
            if begins:
                self._offsets.append(self._tokens)
            self._tokens += len(ids)
        if all(isinstance(ids, np.ndarray) for ids in lines):
            flat = np.concatenate([np.zeros(0, self._dtype), *lines]).astype(self._dtype)
        else:
            flat = np.fromiter(itertools.chain.from_iterable(lines), dtype=self._dtype)
        if self._unknown_id is not None:
            self._unknown += int(np.count_nonzero(flat == self._unknown_id))
        self._digest.update(flat.data)
        self.file.write(flat.data)
        self._lines += len(lines)

    def close(self) -> dict[str, Any]:
        """Finish the files; returns the entry of the split in the manifest."""
        self.file.close()
        self._offsets.append(self._tokens)
        offsets = np.array(self._offsets, dtype="<i8").tobytes()
        self._documents.write_bytes(offsets)
        return {
            "tokens": self._tokens,
            "lines": self._lines,
            "documents": len(self._offsets) - 1,
            "unknown": self._unknown,
            "sha256": self._digest.hexdigest(),
            "documents_sha256": hashlib.sha256(offsets).hexdigest(),
        }


def _chunks(
    lines: Iterable[tuple[str, bool, str]],
) -> Iterator[tuple[str, list[bool], list[str]]]:
    """Lines in chunks of one split each, large enough to be encoded efficiently."""
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
