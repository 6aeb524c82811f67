"""Labels of a corpus from a teacher that is given by name: all of `bighmm distill`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from bighmm.base import processes
from bighmm.data.corpus import Corpus
from bighmm.data.labels import Labels
from bighmm.distill.labelling import LabelSettings, Progress, make_labels
from bighmm.distill.teachers import open_teacher
from bighmm.lm.opening import find_device, open_hmm
from bighmm.model.support import Support
from bighmm.train.recipe import CorpusSettings, ModelSettings, Recipe
from bighmm.train.setup import make_support, open_data


@dataclass(frozen=True)
class LabelWatch:
    """Callbacks that display the stages of labelling."""

    clustering: Callable[[], AbstractContextManager[Callable[[int, int], None] | None]] = (
        nullcontext  # of words into blocks
    )
    stages: Callable[[], AbstractContextManager[Progress | None]] = nullcontext


def label_corpus(
    teacher: str,
    corpus: CorpusSettings,
    student: ModelSettings | Path,
    settings: LabelSettings,
    *,
    layer: int | None = None,
    fresh: bool = False,
    device: str | torch.device = "cpu",
    out: Path | None = None,
    watch: LabelWatch | None = None,
) -> Labels:
    """Label the training tokens of a corpus with the states of a model.

    teacher: as for `open_teacher`, with its `layer`; `fresh` gives it new random weights.
    student: the states and blocks to label with, or a model or run to take them from.
    out: the labels' folder; without it, one in the cache.

    Raises ValueError with one sentence for what cannot be done.
    """
    where = find_device(device)
    with processes.start(where) as here:
        watch = (watch or LabelWatch()) if here.first else LabelWatch()
        return _label(teacher, corpus, student, settings, layer, fresh, where, out, watch)


def _label(
    teacher: str,
    corpus: CorpusSettings,
    student: ModelSettings | Path,
    settings: LabelSettings,
    layer: int | None,
    fresh: bool,
    where: torch.device,
    out: Path | None,
    watch: LabelWatch,
) -> Labels:
    """As `label_corpus`, by all processes."""
    if isinstance(student, ModelSettings):
        student = Recipe(model=student).model  # checks its numbers
    opened = open_data(corpus)
    reader = open_teacher(
        teacher, opened.tokenizer, layer=layer, fresh=fresh, seed=settings.seed, device=where
    )
    support = _support(student, opened, watch)
    with watch.stages() as progress:
        return make_labels(
            opened, reader, support, settings, out=out, device=where, progress=progress
        )


def _support(student: ModelSettings | Path, corpus: Corpus, watch: LabelWatch) -> Support:
    if isinstance(student, ModelSettings):
        with watch.clustering() as progress:
            return make_support(student, corpus, seed=0, progress=progress)
    lm = open_hmm(student, "states to label")
    if lm.tokenizer.fingerprint() != corpus.tokenizer.fingerprint():
        raise ValueError(
            f"the model {student} has another vocabulary than the corpus; give the corpus that it "
            "was trained on, with the same --tokenizer, --min-count and so on"
        )
    return lm.params.support
