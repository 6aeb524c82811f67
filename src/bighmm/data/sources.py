"""Where text comes from: finding the files of a source, and reading them line by line.

A source is

- "pydoc": the text that comes with Python (`pydoc_corpus`);
- a folder with `ptb.{train,valid,test}.txt`: one sentence per line, words set apart by spaces;
  a document is a line;
- a folder with `wiki.{train,valid,test}.tokens`: words set apart by spaces, blank and heading
  lines are lines like any other; a document is an article, from its heading ` = Title = ` on;
- a folder with `{train,valid,test}.txt`: raw text;
- any other text file, or folder of text files (read in the order of their names): raw text that is
  divided into train, valid and test.

Every file is UTF-8 and may be compressed as `.xz`. In raw text a blank line is no line: it ends a
document, and so does the end of a file. Where that makes fewer than three documents, each line is
a document. Raw text without given splits is divided by position: its first documents are train,
then come valid and test, by the shares of the characters asked for, at least one document each.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import lzma
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

from bighmm.data import pydoc_corpus

SPLITS = ("train", "valid", "test")
SUFFIXES = (".txt", ".text", ".md", ".rst", ".tokens")  # what counts as text in a folder


@dataclass(eq=False)
class Source:
    """Where text comes from: files per split, or for raw text to be divided all under ""."""

    kind: str  # pydoc, ptb, wikitext or text
    name: str
    root: Path
    files: dict[str, list[Path]]
    fractions: tuple[float, float] = (0.0, 0.0)

    def description(self) -> dict[str, Any]:
        """What the manifest says of the source; all but "name" decides the prepared files."""
        if self.kind == "pydoc":
            return {"kind": "pydoc", "name": self.name, "sha256": pydoc_corpus.fingerprint()}
        files = [
            {
                "name": path.relative_to(self.root).as_posix(),
                "split": split or None,
                "bytes": path.stat().st_size,
                "sha256": sha256_of(path),
            }
            for split, paths in self.files.items()
            for path in paths
        ]
        described: dict[str, Any] = {"kind": self.kind, "name": self.name, "files": files}
        if "" in self.files:
            described["fractions"] = list(self.fractions)
        return described

    def lines(self, splits: Sequence[str]) -> Iterator[tuple[str, bool, str]]:
        """(split, whether a document starts here, line), one split after the other."""
        if self.kind == "pydoc":
            for split, documents in pydoc_corpus.splits().items():
                if split in splits:
                    for _, text in documents:
                        for number, line in enumerate(text.removesuffix("\n").split("\n")):
                            yield split, number == 0, line
        elif "" in self.files:
            for split, starts, line in self._divided():
                if split in splits:
                    yield split, starts, line
        else:
            for split in splits:
                for starts, line in self._split_lines(self.files[split]):
                    yield split, starts, line

    def _split_lines(self, paths: list[Path]) -> Iterator[tuple[bool, str]]:
        if self.kind == "text":
            yield from _raw_lines(paths, self._each_line)
            return
        for path in paths:
            lines = map(str.strip, _file_lines(path))
            if self.kind == "wikitext":
                yield from _article_lines(lines)
            else:
                yield from ((True, line) for line in lines if line)

    @cached_property
    def _each_line(self) -> bool:
        """Whether each line of raw text is a document, as there are too few others."""
        paths = self.files["" if "" in self.files else "train"]
        documents = (starts for starts, _ in _raw_lines(paths, False) if starts)
        return sum(itertools.islice(documents, 3)) < 3

    def _divided(self) -> Iterator[tuple[str, bool, str]]:
        first_valid, first_test = self._bounds
        document = -1
        for starts, line in _raw_lines(self.files[""], self._each_line):
            document += starts
            if document < first_valid:
                yield "train", starts, line
            else:
                yield "valid" if document < first_test else "test", starts, line

    @cached_property
    def _bounds(self) -> tuple[int, int]:
        """The first document of valid and the first of test."""
        sizes = array("q")  # characters of each document
        for starts, line in _raw_lines(self.files[""], self._each_line):
            if starts:
                sizes.append(0)
            sizes[-1] += len(line)
        if 0 < len(sizes) < 3:
            raise ValueError(
                f"the corpus {self.name} has {len(sizes)} lines of text; at least 3 are needed, "
                "one each for train, valid and test"
            )
        valid, test = self.fractions
        ends = np.cumsum(np.array(sizes, dtype=np.int64))
        shares = np.array([1 - valid - test, 1 - test]) * ends.max(initial=0)
        found_valid, found_test = np.searchsorted(ends, shares) + 1
        first_test = max(2, min(int(found_test), len(sizes) - 1))
        return max(1, min(int(found_valid), first_test - 1)), first_test


def find_source(source: str | Path, valid_fraction: float, test_fraction: float) -> Source:
    if str(source) == "pydoc":
        return Source("pydoc", f"Python {sys.version.split()[0]}", Path(), {})
    path = Path(source).expanduser()
    if not path.exists():
        raise ValueError(
            f'the corpus {source} does not exist; give "pydoc", a text file or a folder of text'
        )
    name = path.resolve().name
    if path.is_dir():
        for kind, pattern, decisive in (
            ("ptb", "ptb.{}.txt", SPLITS),
            ("wikitext", "wiki.{}.tokens", SPLITS),
            ("text", "{}.txt", SPLITS[:1]),
        ):
            files = {split: _plain_or_xz(path / pattern.format(split)) for split in SPLITS}
            if any(files[split] for split in decisive):
                for split in SPLITS:
                    if not files[split]:
                        raise ValueError(
                            f"the corpus {source} lacks {pattern.format(split)} (or the same as "
                            ".xz); train, valid and test must all be there"
                        )
                return Source(kind, name, path, files)
    if not (min(valid_fraction, test_fraction) > 0 and valid_fraction + test_fraction < 1):
        raise ValueError(
            f"valid_fraction is {valid_fraction} and test_fraction is {test_fraction}; both must "
            "be above 0 and their sum below 1"
        )
    fractions = (float(valid_fraction), float(test_fraction))
    if path.is_file():
        return Source("text", name, path.parent, {"": [path]}, fractions)
    paths = [
        file
        for file in sorted(path.rglob("*"))
        if file.is_file()
        and file.name.removesuffix(".xz").endswith(SUFFIXES)
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
    ]
    if not paths:
        raise ValueError(
            f"the corpus {source} holds no text; a folder needs files named {', '.join(SUFFIXES)} "
            "(or the same as .xz)"
        )
    return Source("text", name, path, {"": paths}, fractions)


def _plain_or_xz(path: Path) -> list[Path]:
    both = [path, path.with_name(path.name + ".xz")]
    return [candidate for candidate in both if candidate.is_file()][:1]


def _article_lines(lines: Iterable[str]) -> Iterator[tuple[bool, str]]:
    """(whether an article starts here, line); what precedes the first heading belongs to it.

    A heading stands between blank lines: tables have lines that look like headings otherwise.
    """
    before, number, filled = "", 0, False
    for line, after in itertools.pairwise(itertools.chain(lines, [""])):
        words = line.split()
        heading = (
            not before
            and not after
            and len(words) > 2
            and words[0] == words[-1] == "="
            and "=" not in (words[1], words[-2])
        )
        yield number == 0 or (heading and filled), line
        before, number, filled = line, number + 1, filled or bool(line)


def _raw_lines(paths: list[Path], each: bool) -> Iterator[tuple[bool, str]]:
    """(whether a document starts here, line) without blank lines; `each` starts one everywhere."""
    for path in paths:
        starts = True
        for line in _file_lines(path):
            if line and not line.isspace():
                yield starts or each, line
                starts = False
            else:
                starts = True


def _file_lines(path: Path) -> Iterator[str]:
    """The lines of a text file, plain or .xz, without what ends them."""
    offset = 0
    try:
        # Reading lines from an LZMAFile itself is many times slower.
        packed = path.suffix == ".xz"
        with io.BufferedReader(cast(Any, lzma.open(path))) if packed else path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                line = raw.decode()
                offset += len(raw)
                yield (line.removeprefix("\ufeff") if number == 1 else line).rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 text: byte {offset + error.start} (line {number}) does not "
            "belong; convert the file to UTF-8"
        ) from None
    except (lzma.LZMAError, EOFError):
        raise ValueError(f"{path} is damaged or is not an xz file") from None


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
