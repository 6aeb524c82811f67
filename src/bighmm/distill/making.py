"""Labels of latent variable distillation: from a teacher's vectors to one state for each token.

`make_labels` works in pieces of the text. It embeds pieces that lie evenly over it and clusters
their vectors, then labels one piece after the other. What is finished is kept in `NAME.partial`, so
the same request goes on where it was interrupted; the folder `NAME` is there when all is done.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bighmm.base.files import read_json, write_json, write_tensors
from bighmm.data.corpus import Corpus
from bighmm.data.labels import (
    CENTROIDS,
    FORMAT,
    LABELS,
    MANIFEST,
    Labels,
    open_labels,
    read_tensors,
)
from bighmm.distill.align import Pool, embed
from bighmm.distill.kmeans import rows_at_once
from bighmm.distill.pca import PCA, fit_pca
from bighmm.distill.states import Blocks, StateClusters, blocks_of, cluster_states
from bighmm.distill.teachers import Reading, Teacher
from bighmm.model.support import Dense, Support

PIECE = 16_384  # tokens that are embedded together, at most
LARGEST = 65_504.0  # of the 16-bit numbers that vectors are kept in
REQUEST, FIGURES, VECTORS, PROJECTED = "request.json", "fit.json", "vectors.bin", "projected.bin"
WORKING, LOCK = (REQUEST, FIGURES, VECTORS, PROJECTED), "lock"

Progress = Callable[[str, int, int], None]  # what is being done, how much of it, of how much


@dataclass(frozen=True)
class LabelSettings:
    pca: int | None = None  # principal components that are clustered instead of the vectors
    cluster_tokens: int = 1_000_000  # at most, to find the clusters with
    label_tokens: int | None = 10_000_000  # the first so many are labelled; None: all
    pool: Pool = "last"  # see `align`
    reading: Reading = field(default_factory=Reading)
    iterations: int = 40  # passes of k-means, at most
    seed: int = 1

    def __post_init__(self) -> None:
        counts = (self.cluster_tokens, self.label_tokens, self.pca, self.iterations)
        if any(count is not None and count < 1 for count in counts):
            raise ValueError(
                "cluster_tokens, label_tokens, pca and iterations must be at least 1, not "
                f"{', '.join(map(str, counts))}"
            )
        if self.pool not in ("last", "mean"):
            raise ValueError(f"there is no pool {self.pool!r}; use last or mean")


def make_labels(
    corpus: Corpus,
    teacher: Teacher,
    states: int | Support,
    settings: LabelSettings | None = None,
    *,
    out: str | Path | None = None,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> Labels:
    """Labels from a teacher for a model with a support, or a dense one with so many `states`.

    out: the folder to write; without it one beside the corpus, in the cache, whose name is a hash
        of the request. Labels of the same request that are there already are opened.
    device: where is clustered; the teacher has its own.

    Raises ValueError if `out` holds something else, or the request cannot be met.
    """
    settings = LabelSettings() if settings is None else settings
    support = Dense(states, corpus.tokenizer.size) if isinstance(states, int) else states
    plan = _Plan.of(corpus, support, settings, teacher.width)
    described = teacher.description()
    request = _request(corpus, described, plan, settings)
    key = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
    beside = corpus.folder.parent / f"labels-{key[:16]}"
    folder = beside if out is None else Path(out)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        if not (folder / MANIFEST).is_file() or read_json(folder / MANIFEST).get("key") != key:
            raise ValueError(
                f"{folder} already holds other labels or other files; choose another folder"
            )
        return open_labels(folder, corpus)
    work = folder.with_name(f"{folder.name}.partial")
    with _alone(work):
        if not (work / REQUEST).is_file() or read_json(work / REQUEST) != request:
            for name in (*WORKING, LABELS, CENTROIDS, MANIFEST):
                (work / name).unlink(missing_ok=True)
            write_json(work / REQUEST, request)
        if not (work / MANIFEST).is_file():
            job = _Job(work, corpus, teacher, plan, settings, torch.device(device), progress)
            manifest = {
                "format": FORMAT,
                "key": key,
                **request,
                "corpus": {**request["corpus"], "name": corpus.manifest["source"]["name"]},
                "teacher": described,
                "device": str(device),
                "result": job.run(),
            }
            write_json(work / MANIFEST, manifest)
        for name in (*WORKING, LOCK):
            (work / name).unlink(missing_ok=True)
        work.rename(folder)
    return open_labels(folder, corpus)


@dataclass(frozen=True)
class _Plan:
    """Which tokens are embedded together, and which of these pieces are clustered."""

    blocks: Blocks
    states: dict[str, Any]  # the key of the support (`Support.label_key`)
    labelled: int  # tokens that get a label
    bounds: list[tuple[int, int]]  # of every piece
    clustered: list[int]  # numbers of the pieces whose vectors are clustered, spread evenly

    @staticmethod
    def of(corpus: Corpus, support: Support, settings: LabelSettings, width: int) -> _Plan:
        if settings.pca is not None and settings.pca > width:
            raise ValueError(
                f"the teacher's vectors are {width} wide and have no {settings.pca} principal "
                f"components; use at most {width}"
            )
        if support.vocabulary_size != corpus.tokenizer.size:
            raise ValueError(
                f"the model knows {support.vocabulary_size} tokens but the corpus has "
                f"{corpus.tokenizer.size}; both must come from the same vocabulary"
            )
        there = len(corpus.split("train"))
        labelled = min(there, settings.label_tokens or there)
        used = min(there, max(labelled, settings.cluster_tokens))
        wanted = -(-settings.cluster_tokens // PIECE)  # pieces, if all are full
        size = settings.cluster_tokens // wanted
        bounds = [(first, min(first + size, used)) for first in range(0, used, size)]
        number = min(len(bounds), settings.cluster_tokens // size)
        clustered = [i * len(bounds) // number for i in range(number)]
        tokens = sum(bounds[i][1] - bounds[i][0] for i in clustered)
        if support.is_dense and tokens < support.num_states:
            raise ValueError(
                f"{tokens:,} tokens cannot make {support.num_states:,} clusters, one for each "
                "state; cluster more tokens or use fewer states"
            )
        return _Plan(blocks_of(support), support.label_key(), labelled, bounds, clustered)


def _request(
    corpus: Corpus, teacher: dict[str, Any], plan: _Plan, settings: LabelSettings
) -> dict[str, Any]:
    """What decides the labels, and nothing else."""
    return {
        "corpus": {
            "fingerprint": corpus.fingerprint,
            "vocabulary": corpus.tokenizer.fingerprint(),
        },
        "teacher": {name: value for name, value in teacher.items() if name != "name"},
        "states": plan.states,
        "tokens": plan.labelled,
        "dtype": _dtype(plan.blocks),
        "settings": {**dataclasses.asdict(settings), "label_tokens": plan.labelled},
    }


@dataclass(eq=False)
class _Job:
    """The three stages, each of which goes on from what is in the work folder."""

    work: Path
    corpus: Corpus
    teacher: Teacher
    plan: _Plan
    settings: LabelSettings
    device: torch.device
    progress: Progress | None

    def run(self) -> dict[str, Any]:
        """What came of it, for the manifest."""
        began = time.monotonic()
        if not (self.work / FIGURES).is_file():
            self._embed()
            figures = self._cluster()
            write_json(self.work / FIGURES, figures)
        figures = read_json(self.work / FIGURES)
        counts = self._label()
        return {
            **figures,
            "used": int(np.count_nonzero(counts)),
            "largest_share": float(counts.max() / counts.sum()),
            "seconds": round(time.monotonic() - began, 2),  # since it was last started
        }

    def _embed(self) -> None:
        """Append the vectors of the pieces to be clustered to a file."""
        sizes = [self._size(i) for i in self.plan.clustered]
        total = sum(sizes)
        row = 2 * self.teacher.width  # bytes
        with (self.work / VECTORS).open("ab") as file:
            rows = file.tell() // row
            ends = np.cumsum([0, *sizes])
            done = int(np.searchsorted(ends, rows, side="right")) - 1  # whole pieces
            file.truncate(int(ends[done]) * row)
            for i in self.plan.clustered[done:]:
                file.write(self._vectors(*self.plan.bounds[i]).cpu().numpy().tobytes())
                file.flush()
                done += 1
                self._say("embedding", int(ends[done]), total)

    def _cluster(self) -> dict[str, Any]:
        """Find the centres of all states, and write them."""
        vectors = self._embedded()
        points, pca = vectors, None
        if self.settings.pca is not None:
            pca = fit_pca(self._chunks(vectors), self.settings.pca)
            points = self._project(vectors, pca)
        train = self.corpus.split("train")
        pieces = [self.plan.bounds[i] for i in self.plan.clustered]
        tokens = np.concatenate([train[first:last] for first, last in pieces])
        found = cluster_states(
            points,
            tokens,
            self.plan.blocks,
            seed=self.settings.seed,
            iterations=self.settings.iterations,
            device=self.device,
            progress=lambda done, total: self._say("clustering", done, total),
        )
        centres, counts = found.centres.cpu(), found.counts.cpu()
        tensors = {"centroids": centres, "counts": counts}
        if pca is not None:
            mean, components = pca.mean.cpu(), pca.components.cpu()
            restored = PCA(mean, components, pca.share).restore(centres)
            restored[counts == 0] = 0
            tensors = {"centroids": restored, "counts": counts, "centres": centres}
            tensors |= {"pca.mean": mean, "pca.components": components}
        write_tensors(self.work / CENTROIDS, tensors)
        return {
            "clustered": len(tokens),
            "inertia": found.inertia / len(tokens),  # per token
            "variance_kept": None if pca is None else pca.share,
        }

    def _label(self) -> np.ndarray:
        """Append the labels of one piece after the other; how often each state was given."""
        clusters, pca = self._clusters()
        train, dtype = self.corpus.split("train"), np.dtype(_dtype(self.plan.blocks))
        embedded = dict(zip(self.plan.clustered, self._rows(), strict=True))
        vectors = self._embedded()
        path = self.work / LABELS
        with path.open("ab") as file:
            done = file.tell() // dtype.itemsize
            for i, (first, last) in enumerate(self.plan.bounds):
                last = min(last, self.plan.labelled)
                if last <= done:
                    continue
                if first >= self.plan.labelled:
                    break
                file.truncate(first * dtype.itemsize)
                if i in embedded:
                    row = embedded[i]
                    x = torch.from_numpy(np.array(vectors[row : row + last - first]))
                else:
                    x = self._vectors(first, last)
                x = x.to(self.device).float()
                states = clusters.label(x if pca is None else pca.project(x), train[first:last])
                file.write(states.astype(dtype).tobytes())
                file.flush()
                self._say("labelling", last, self.plan.labelled)
        given = np.memmap(path, dtype=dtype, mode="r")
        return np.bincount(given, minlength=self.plan.blocks.num_states)

    def _vectors(self, first: int, last: int) -> Tensor:
        """Vectors (N, H) of training tokens first … last-1, read with the text around them."""
        train, margin = self.corpus.split("train"), self.settings.reading.window
        begin, end = max(0, first - margin), min(len(train), last + margin)
        found = embed(
            self.teacher,
            self.corpus.tokenizer,
            train[begin:end],
            self.settings.reading,
            self.settings.pool,
        )
        return found[first - begin : last - begin].clamp(-LARGEST, LARGEST).half()

    def _embedded(self) -> np.ndarray:
        """The vectors (N, H) of the pieces that were embedded."""
        shape = (sum(map(self._size, self.plan.clustered)), self.teacher.width)
        return np.memmap(self.work / VECTORS, dtype=np.float16, mode="r", shape=shape)

    def _rows(self) -> list[int]:
        """Where the vectors of each embedded piece begin in the file."""
        sizes = [self._size(i) for i in self.plan.clustered]
        return np.cumsum([0, *sizes[:-1]]).tolist()

    def _chunks(self, vectors: np.ndarray) -> Iterator[Tensor]:
        step = rows_at_once(1, vectors.shape[1])
        for first in range(0, len(vectors), step):
            part = np.array(vectors[first : first + step])
            yield torch.from_numpy(part).to(self.device).float()

    def _project(self, vectors: np.ndarray, pca: PCA) -> np.ndarray:
        path = self.work / PROJECTED
        with path.open("wb") as file:
            for x in self._chunks(vectors):
                file.write(pca.project(x).cpu().numpy().tobytes())
        shape = (len(vectors), len(pca.components))
        return np.memmap(path, dtype=np.float32, mode="r", shape=shape)

    def _clusters(self) -> tuple[StateClusters, PCA | None]:
        found = {n: t.to(self.device) for n, t in read_tensors(self.work / CENTROIDS).items()}
        centres = found.get("centres", found["centroids"])
        clusters = StateClusters(self.plan.blocks, centres, found["counts"], 0.0)
        if "centres" not in found:
            return clusters, None
        return clusters, PCA(found["pca.mean"], found["pca.components"], 0.0)

    def _size(self, piece: int) -> int:
        first, last = self.plan.bounds[piece]
        return last - first

    def _say(self, stage: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(stage, done, total)


def _dtype(blocks: Blocks) -> str:
    return "<u2" if blocks.num_states <= 1 << 16 else "<u4"


@contextlib.contextmanager
def _alone(work: Path) -> Iterator[None]:
    """A work folder that no other process works in; ValueError if one does."""
    work.mkdir(parents=True, exist_ok=True)
    with (work / LOCK).open("w") as lock:
        try:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:
            pass  # no such locks on this system
        except OSError:
            raise ValueError(
                f"another process is making these labels in {work}; wait for it"
            ) from None
        yield
