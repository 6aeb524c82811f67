"""Sources of text: their files, splits, documents and lines.

A source is one of

- "pydoc": the text that comes with Python (`pydoc_corpus`);
- a folder with `ptb.{train,valid,test}.txt`: one sentence per line, words separated by spaces;
  each line is a document;
- a folder with `wiki.{train,valid,test}.tokens`: words separated by spaces; a document is an
  article, which begins with its heading ` = Title = `; blank lines and headings are lines too;
- a folder with `{train,valid,test}.txt`: raw text;
- any other text file, or folder of text files (read in the order of their names): raw text that is
  divided into train, valid and test.

Every file is UTF-8 and may be compressed as `.xz` or `.gz`. In raw text, blank lines and the ends
of files separate documents, and are not lines themselves. If there are fewer than three documents
then, each line is a document. Raw text without splits is divided by position: the first documents
are train, then valid, then test. Their sizes follow the requested shares of the characters, with at
least one document each.

Raw text whose lines are very long or fewer than three, such as a file without line breaks, is cut
into sentences first (`sentences`), which are its lines then.
"""

from __future__ import annotations

import itertools
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from bighmm.base.files import sha256_of
from bighmm.base.reading import read_lines, read_pieces, unpacked_name
from bighmm.data import pydoc_corpus
from bighmm.data.sentences import are_too_long, sentences

SPLITS = ("train", "valid", "test")
SUFFIXES = (".txt", ".text", ".md", ".rst", ".tokens")  # of the text files in a folder


@dataclass(eq=False)
class Source:
    """Text with splits, documents and lines."""

    kind: str  # pydoc, ptb, wikitext or text
    name: str
    root: Path
    files: dict[str, list[Path]]  # by split; all under "" if the text has yet to be divided
    fractions: tuple[float, float] = (0.0, 0.0)  # of valid and test, for text to be divided

    def description(self) -> dict[str, Any]:
        """The source as the manifest describes it.

        All entries except "name" identify the text: if they are equal, the prepared files are too.
        """
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
        description: dict[str, Any] = {"kind": self.kind, "name": self.name, "files": files}
        if self.kind == "text" and self._cut:
            description["cut"] = "sentences"
        if "" in self.files:
            description["fractions"] = list(self.fractions)
        return description

    def lines(self, splits: Sequence[str]) -> Iterator[tuple[str, bool, str]]:
        """(split, whether the line begins a document, line) of all lines, split by split."""
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

    def whole_lines(self) -> Iterator[tuple[bool, str]]:
        """(whether the line begins a document, line) of text that has no splits of its own.

        Lines that are very long are cut into sentences; that they are few does not matter here.
        """
        assert "" in self.files, "this source has splits"
        cut = are_too_long(self._first_lines(self.files[""]), few=0)
        return _raw_lines(self.files[""], self._lines_are_documents, cut)

    def _split_lines(self, paths: list[Path]) -> Iterator[tuple[bool, str]]:
        """(whether the line begins a document, line) of the files of one split."""
        if self.kind == "text":
            yield from _raw_lines(paths, self._lines_are_documents, self._cut)
            return
        for path in paths:
            lines = map(str.strip, _file_lines(path))
            if self.kind == "wikitext":
                yield from _article_lines(lines)
            else:
                yield from ((True, line) for line in lines if line)

    @cached_property
    def _cut(self) -> bool:
        """Whether lines of raw text are cut into sentences."""
        paths = self.files["" if "" in self.files else "train"]
        return are_too_long(self._first_lines(paths))

    @staticmethod
    def _first_lines(paths: list[Path]) -> Iterator[str]:
        """The lines of files, of any length."""
        return (line for path in paths for line in _file_lines(path, pieces=True))

    @cached_property
    def _lines_are_documents(self) -> bool:
        """Whether each line of raw text is a document, because blank lines separate too few."""
        paths = self.files["" if "" in self.files else "train"]
        documents = (starts for starts, _ in _raw_lines(paths, False, self._cut) if starts)
        return sum(itertools.islice(documents, 3)) < 3

    def _divided(self) -> Iterator[tuple[str, bool, str]]:
        """The lines of raw text, divided into splits."""
        first_valid, first_test = self._bounds
        document = -1
        for starts, line in _raw_lines(self.files[""], self._lines_are_documents, self._cut):
            document += starts
            if document < first_valid:
                yield "train", starts, line
            else:
                yield "valid" if document < first_test else "test", starts, line

    @cached_property
    def _bounds(self) -> tuple[int, int]:
        """The numbers of the first document of valid and of the first document of test."""
        sizes = array("q")  # characters of each document
        for starts, line in _raw_lines(self.files[""], self._lines_are_documents, self._cut):
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
        by_share_valid, by_share_test = np.searchsorted(ends, shares) + 1
        first_test = max(2, min(int(by_share_test), len(sizes) - 1))
        return max(1, min(int(by_share_valid), first_test - 1)), first_test


def find_source(source: str | Path, valid_fraction: float, test_fraction: float) -> Source:
    """The source named "pydoc", or the source in a file or folder.

    valid_fraction, test_fraction: shares of the characters, if the text has to be divided.

    Raises ValueError if there is no such file or folder, it has no text or lacks a split, or the
    fractions leave nothing for one of the splits.
    """
    if not str(source):
        raise ValueError("the corpus is empty; give pydoc, or a file or folder of text")
    if str(source) == "pydoc":
        return Source("pydoc", f"Python {sys.version.split()[0]}", Path(), {})
    path = Path(source).expanduser()
    if not path.exists():
        raise ValueError(
            f'the corpus {source} does not exist; give "pydoc", a text file or a folder of text'
        )
    name = path.resolve().name
    if path.is_dir() and (known := _known_layout(source, path)):
        kind, files = known
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
        and unpacked_name(file.name).endswith(SUFFIXES)
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
    ]
    if not paths:
        raise ValueError(
            f"the corpus {source} holds no text; a folder needs files named {', '.join(SUFFIXES)} "
            "(or the same as .xz or .gz)"
        )
    return Source("text", name, path, {"": paths}, fractions)


def _known_layout(source: str | Path, folder: Path) -> tuple[str, dict[str, list[Path]]] | None:
    """The kind and the files of a folder with files for each split; None for other folders.

    Raises ValueError if the files of a split are missing.
    """
    for kind, pattern, decisive in (
        ("ptb", "ptb.{}.txt", SPLITS),
        ("wikitext", "wiki.{}.tokens", SPLITS),
        ("text", "{}.txt", SPLITS[:1]),
    ):
        files = {split: _plain_or_packed(folder / pattern.format(split)) for split in SPLITS}
        if any(files[split] for split in decisive):
            for split in SPLITS:
                if not files[split]:
                    raise ValueError(
                        f"the corpus {source} lacks {pattern.format(split)} (or the same as "
                        ".xz or .gz); train, valid and test must all be there"
                    )
            return kind, files
    return None


def _plain_or_packed(path: Path) -> list[Path]:
    """`path`, or the same with the suffix .xz or .gz, in a list; empty if there is none."""
    names = [path.name + suffix for suffix in ("", ".xz", ".gz")]
    return [candidate for candidate in map(path.with_name, names) if candidate.is_file()][:1]


def _article_lines(lines: Iterable[str]) -> Iterator[tuple[bool, str]]:
    """(whether the line begins an article, line) of all lines.

    Lines before the first heading belong to the first article. A line is a heading only if the
    lines before and after it are blank, because some lines of tables look like headings.
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


def _raw_lines(
    paths: list[Path], lines_are_documents: bool, cut: bool
) -> Iterator[tuple[bool, str]]:
    """(whether the line begins a document, line) of all lines that are not blank.

    cut: whether lines are cut into sentences.
    """
    for path in paths:
        starts = True
        for line in _file_lines(path, pieces=cut):
            if line and not line.isspace():
                for part in sentences(line) if cut else (line,):
                    yield starts or lines_are_documents, part
                    starts = False
            else:
                starts = True


def _file_lines(path: Path, pieces: bool = False) -> Iterator[str]:
    """The lines of a text file, plain or packed, without line ends.

    pieces: whether they may be of any length, and those that are very long come in pieces.
    """
    offset = 0
    try:
        for number, raw in enumerate((read_pieces if pieces else read_lines)(path), 1):
            line = raw.decode()
            offset += len(raw)
            yield (line.removeprefix("\ufeff") if number == 1 else line).rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path} is not UTF-8 text: byte {offset + error.start} (line {number}) does not "
            "belong; convert the file to UTF-8"
        ) from None
