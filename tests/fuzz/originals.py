"""The undamaged files and folders with the questions about them, and the answers to these.

A question is a function of a path that returns a JSON value. The answers to all questions about
the undamaged files are kept, to be compared with those about damaged ones.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bighmm.base.files import sha256_of
from bighmm.data.corpus import Corpus

from .outcome import Failure

sys.path.insert(0, str(Path(__file__).parents[1]))
from tokenizer_files import bpe, sentencepiece_model

Question = Callable[[Path], Any]
ENOUGH = 1e-4  # deviation of the sum of probabilities from one


@dataclass(frozen=True)
class Original:
    """A file or folder and the questions about it.

    saved: whether the library wrote it and vouches for it. Then a damaged one never gives another
        answer, unless its hashes were corrected too. Otherwise it is a user's input, and another
        content may give another answer.
    """

    name: str
    path: Path
    questions: Mapping[str, Question]
    saved: bool = True

    def files(self) -> list[Path]:
        """All its files, relative to its path's parent."""
        if self.path.is_file():
            return [Path(self.path.name)]
        found = (path for path in sorted(self.path.rglob("*")) if path.is_file())
        return [path.relative_to(self.path.parent) for path in found]


@dataclass
class Originals:
    """All originals, and the answers about them."""

    place: Path
    text: Path
    corpus: Corpus
    every: list[Original] = field(default_factory=list)
    answers: dict[tuple[str, str], Any] = field(default_factory=dict)

    def add(self, original: Original) -> None:
        self.every.append(original)
        for name, question in original.questions.items():
            self.answers[original.name, name] = as_json(question(original.path))

    def path(self, name: str) -> Path:
        return next(original.path for original in self.every if original.name == name)


def as_json(answer: Any) -> Any:
    """An answer as it is read back from JSON, with numbers rounded to what is the same anywhere."""
    return json.loads(json.dumps(answer), parse_float=lambda number: float(f"{float(number):.5g}"))


def check_sums(totals: list[float], log_probs: list[float]) -> None:
    """`Failure` if probabilities do not sum to one after a text, unless that is impossible."""
    for total, log_prob in zip(totals, log_probs, strict=True):
        if not abs(total - 1) < ENOUGH and not (total == 0 and log_prob == -math.inf):
            raise Failure(f"the probabilities of the next token sum to {total}")


def on_a_copy(questions: dict[str, Question]) -> dict[str, Question]:
    """The same questions about a copy, as they change the folder."""

    def about_copy(question: Question) -> Question:
        def ask_copy(path: Path) -> Any:
            copy = path.with_name("copy") / path.name
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(path, copy, symlinks=True, copy_function=_copy)
            return question(copy)

        return ask_copy

    return {name: about_copy(question) for name, question in questions.items()}


def _copy(source: str, target: str) -> None:
    """Copy a file; what is neither a file nor a link is made anew."""
    if not os.path.isfile(source) and not os.path.islink(source):
        os.mkfifo(target)
    else:
        shutil.copy2(source, target, follow_symlinks=False)


def tokenizer_folder(place: Path, kind: str) -> Path:
    folder = place / kind / "tokenizer"
    if not folder.exists():
        folder.mkdir(parents=True)
        if kind == "bpe":
            bpe(folder / "tokenizer.json")
        else:
            sentencepiece_model(folder / "tokenizer.model")
    return folder


def fingerprints(originals: Originals) -> dict[str, str]:
    """The SHA-256 of every file of the originals, which no case may change."""
    found = {}
    for path in sorted({original.path for original in originals.every}):
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.is_file():
                found[str(file.relative_to(originals.place))] = sha256_of(file)
    return found
