"""Corpora that language models of this library write.

`write_text` samples from a model, or from the mean of several of one vocabulary, until there are
enough tokens. The corpus is like any other: models can be trained on it (`--data`), or on it and
other text (`--more`), and evaluated on its held-out part.

While it is being written there are shards (`distill.shards`) in the folder `NAME.partial`, from
which the same request goes on; then the corpus is written as a whole, and they are removed.

A document is what was written in one go: a sentence of models that begin anew after an end mark,
and a stream of sentences (`distill.streams`) of models that remember those before.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bighmm.base import processes, randomness
from bighmm.base.files import sha256_of
from bighmm.base.json_files import read_object
from bighmm.base.locks import check_free, is_unused
from bighmm.data.corpus import Corpus, is_prepared, open_corpus, write_corpus
from bighmm.data.written import WRITTEN, Writer, writers_of
from bighmm.distill.settings import WriteSettings
from bighmm.distill.shards import REQUEST, Progress, Shard, Shards, read_shard, shard_paths
from bighmm.distill.streams import FromProbabilities, FromStates, Source, Streams
from bighmm.hmm import HMM
from bighmm.lm.opening import find_model, open_model, training_texts
from bighmm.lm.protocol import LM, MatmulDtype
from bighmm.lm.stepping import stepper_of
from bighmm.train.losses import tensor_float_32

HELD_OUT, MOST_HELD_OUT = 0.05, 100_000  # valid and test: share and number of tokens, at most


@dataclass(frozen=True, eq=False)
class Teachers:
    """Language models of one vocabulary that write together.

    writers: what the manifest says of each.
    """

    models: list[LM]
    writers: list[Writer]

    @property
    def carries(self) -> bool:
        """Whether a model remembers the sentences before an end mark."""
        return any(lm.convention == "carry" for lm in self.models)

    @property
    def device(self) -> torch.device:
        """That of the first model on a GPU, if there is one."""
        places = [lm.device for lm in self.models]
        return next((place for place in places if place.type != "cpu"), places[0])

    def source(self, settings: WriteSettings) -> Source:
        """Where their tokens come from."""
        if len(self.models) == 1 and settings.temperature == settings.top_p == 1:
            predictor = self.models[0].predictor()
            if isinstance(predictor, HMM):
                return FromStates(predictor, settings.rows)
        steppers = [stepper_of(lm) for lm in self.models]
        return FromProbabilities(steppers, settings.rows, settings.temperature, settings.top_p)


def open_teachers(
    paths: Sequence[str | Path],
    device: str | torch.device = "cpu",
    matmul_dtype: MatmulDtype = "auto",
) -> Teachers:
    """The models of some folders or runs.

    Raises ValueError if one is missing or damaged, or their vocabularies differ.
    """
    if not paths:
        raise ValueError("a text needs a model that writes it; name one")
    models = [open_model(path, device, matmul_dtype) for path in paths]
    first = models[0].tokenizer.fingerprint()
    for path, lm in zip(paths, models, strict=True):
        if lm.tokenizer.fingerprint() != first:
            raise ValueError(
                f"{path} has another vocabulary than {paths[0]}; models that write together must "
                "have the same words"
            )
        stepper_of(lm)
    return Teachers(models, [_writer(path) for path in paths])


def write_text(
    teachers: Teachers,
    settings: WriteSettings,
    out: str | Path,
    *,
    exact: bool = False,
    progress: Progress | None = None,
) -> Corpus:
    """A corpus that the teachers write, in the folder `out`; the same request goes on or opens it.

    exact: products of matrices on a GPU in float32, not in TensorFloat-32.
    progress: called with the number of tokens that are written, and of how many.

    Several processes of a launcher (`base.processes`) write shards at the same time; all of them
    must see the folder. The text is the same.

    Raises ValueError with one sentence if `out` holds something else, or another process writes it.
    """
    with processes.start(teachers.device) as here:
        out = Path(out)
        asked = {
            "writers": [writer.sha256 for writer in teachers.writers],
            **settings.stored(),
            "exact": exact,
        }
        here.require_alike({"request": json.dumps(asked, sort_keys=True)})
        return _write_text(teachers, settings, out, asked, exact, progress if here.first else None)


def _write_text(
    teachers: Teachers,
    settings: WriteSettings,
    out: Path,
    asked: dict[str, Any],
    exact: bool,
    progress: Progress | None,
) -> Corpus:
    here = processes.current()
    work = out.with_name(f"{out.name}.partial")
    finished = None
    with here.first_does() as mine:
        if mine:
            check_free(work)
            finished = _finished(out, asked)
    if here.from_first(finished is None):
        with Shards(work, asked).locked() as shards:
            with here.first_does() as mine:
                if mine:  # another command may have written it meanwhile
                    finished = _finished(out, asked)
            if here.from_first(finished is None):
                shards.write_missing(settings.tokens, _maker(teachers, settings, exact), progress)
            with here.first_does() as mine:
                if mine:
                    finished = finished or _assemble(work, teachers, asked, out)
                    _clear(work)
    if here.first and work.is_dir() and is_unused(work):
        with contextlib.suppress(OSError):
            work.rmdir()
    return finished or open_corpus(out)


def _maker(teachers: Teachers, settings: WriteSettings, exact: bool) -> Callable[..., Shard]:
    """A function that makes a shard by its number; models are asked for nothing before that."""
    streams: list[Streams] = []

    def make(number: int, report: Callable[[int], None] | None) -> Shard:
        if not streams:
            made = Streams(
                teachers.source(settings),
                settings.rows,
                settings.steps,
                teachers.models[0].tokenizer.end,
                sentences=not teachers.carries,
                precision=contextlib.nullcontext if exact else tensor_float_32,
            )
            streams.append(made)
        return streams[0].shard(randomness.key(settings.seed, number), report)

    return make


def _assemble(work: Path, teachers: Teachers, asked: dict[str, Any], out: Path) -> Corpus:
    """The corpus of all shards, cut after the first document with which it has enough tokens."""
    sizes, log_prob, known = [], 0.0, 0
    for path in shard_paths(work):
        shard = read_shard(path)
        sizes.append(np.diff(shard["bounds"].numpy()))
        if "log_probs" in shard:
            log_prob += float(shard["log_probs"].double().sum())
            known += len(shard["log_probs"])
    splits = _splits(np.concatenate(sizes), asked["tokens"])
    names = [writer.name for writer in teachers.writers]
    described = {
        "kind": WRITTEN,
        "name": ", ".join(Path(name).name for name in names),
        **asked,
        "writers": [dataclasses.asdict(writer) for writer in teachers.writers],
        "documents": "streams" if teachers.carries else "sentences",
        "device": str(teachers.device),
        "perplexity": math.exp(-log_prob / known) if known else None,
    }
    texts = {name: _texts(work, *some) for name, some in splits.items()}
    return write_corpus(out, teachers.models[0].tokenizer, texts, described)


def _splits(sizes: np.ndarray, tokens: int) -> dict[str, tuple[int, int]]:
    """(first, last) of train, valid and test, which have the documents first … last-1.

    sizes: of all documents (N,); the first ones that have `tokens` tokens in all are used.
    """
    ends = np.cumsum(sizes)
    used = int(np.searchsorted(ends, min(tokens, ends[-1]))) + 1
    if used < 3:
        raise ValueError(
            f"{tokens:,} tokens are {used} documents, which cannot be divided into train, valid "
            "and test; ask for more tokens, or for a larger --batch"
        )
    held = min(HELD_OUT * ends[used - 1], MOST_HELD_OUT)
    first_test = min(int(np.searchsorted(ends, ends[used - 1] - held)), used - 2) + 1
    first_valid = min(int(np.searchsorted(ends, ends[first_test - 1] - held)), first_test - 2) + 1
    return {
        "train": (0, first_valid),
        "valid": (first_valid, first_test),
        "test": (first_test, used),
    }


def _texts(work: Path, first: int, last: int) -> Iterator[np.ndarray]:
    """The tokens of documents first … last-1 of all shards, which are read one after the other."""
    before = 0
    for path in shard_paths(work):
        if before >= last:
            return
        shard = read_shard(path)
        tokens, bounds = shard["tokens"].numpy(), shard["bounds"].numpy()
        for i in range(max(first - before, 0), min(last - before, len(bounds) - 1)):
            yield tokens[bounds[i] : bounds[i + 1]]
        before += len(bounds) - 1


def _finished(out: Path, asked: dict[str, Any]) -> Corpus | None:
    """The corpus of a request, if it is there; ValueError if something else is."""
    if is_unused(out):
        return None
    if not out.is_dir() or not is_prepared(out):
        raise ValueError(f"{out} already holds other files; choose another --out")
    corpus = open_corpus(out)
    source = corpus.manifest["source"]
    known = {**source, "writers": [writer.sha256 for writer in writers_of(corpus)]}
    changed = [key for key in asked if known.get(key) != asked[key]]
    if changed:
        raise ValueError(
            f"{out} already holds a text with another {changed[0]}; choose another --out"
        )
    return corpus


def _clear(work: Path) -> None:
    for path in (*shard_paths(work), work / REQUEST):
        path.unlink(missing_ok=True)


def _writer(path: str | Path) -> Writer:
    config = find_model(path) / "config.json"
    family = read_object(config).get("family", "hmm")
    return Writer(str(path), family, sha256_of(config), *training_texts(path))
