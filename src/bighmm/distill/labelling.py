"""Labels for latent variable distillation: one state for each token, from a teacher's vectors.

`make_labels` cuts the text into pieces. It embeds pieces that are evenly distributed over the text,
clusters their vectors into states, and then labels piece by piece. Intermediate results are files
in the folder `NAME.partial`, so the same request continues where it was interrupted. The folder is
renamed to `NAME` at the end. The name is locked meanwhile, so one process at a time makes it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bighmm.base import processes
from bighmm.base.files import flush, naming, sha256_of, write_sealed
from bighmm.base.json_files import read_object
from bighmm.base.locks import locked_name, remove_temporary_files
from bighmm.base.own_files import append_to
from bighmm.base.tensor_files import read_tensors, write_tensors
from bighmm.data.corpus import Corpus, writing_cache
from bighmm.data.labels import (
    CENTROIDS,
    FORMAT,
    LABELS,
    MANIFEST,
    Labels,
    open_labels,
)
from bighmm.distill.align import Pool, embed
from bighmm.distill.kmeans import rows_at_once
from bighmm.distill.pca import PCA, fit_pca
from bighmm.distill.states import Blocks, StateClusters, blocks_of, cluster_states
from bighmm.distill.teachers import Reading, Teacher
from bighmm.model.support import Dense, Support

PIECE = 16_384  # the most tokens that are embedded together
LARGEST = 65_504.0  # the largest float16 number; vectors are stored as float16
REQUEST, FIGURES, VECTORS, PROJECTED = "request.json", "fit.json", "vectors.bin", "projected.bin"
WORKING = (REQUEST, FIGURES, VECTORS, PROJECTED)

Progress = Callable[[str, int, int], None]  # the stage, how much of it is done, of how much


@dataclass(frozen=True)
class LabelSettings:
    """How labels are made."""

    pca: int | None = None  # number of principal components to cluster; None: the vectors
    cluster_tokens: int = 1_000_000  # the most tokens whose vectors are clustered
    label_tokens: int | None = 10_000_000  # number of tokens that are labelled; None: all
    pool: Pool = "last"  # see `align.embed`
    reading: Reading = field(default_factory=Reading)
    iterations: int = 40  # the most passes of k-means
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
    """Labels of the training tokens of a corpus; opened if the same request was made before.

    states: the support of the model to label for, or the number of states of a dense model.
    out: the folder to write; by default one in the cache, beside the corpus, that is named after a
        hash of the request.
    device: the device for k-means; the teacher has its own.
    progress: called with the stage, how much of it is done, and of how much.

    Several processes of a launcher (`base.processes`) share the pieces of the text, as the teacher
    reads them and as they are labelled. All must see the folder; the labels are the same.

    Raises ValueError if `out` holds other files, another process is writing there, or the request
    does not fit the corpus or the teacher.
    """
    with processes.start(torch.device(device)) as here:
        report = progress if here.first else None
        return _make_labels(corpus, teacher, states, settings, out, device, report)


def _make_labels(
    corpus: Corpus,
    teacher: Teacher,
    states: int | Support,
    settings: LabelSettings | None,
    out: str | Path | None,
    device: torch.device | str,
    progress: Progress | None,
) -> Labels:
    here = processes.current()
    settings = LabelSettings() if settings is None else settings
    support = Dense(states, corpus.tokenizer.size) if isinstance(states, int) else states
    plan = _Plan.of(corpus, support, settings, teacher.width)
    description = teacher.description()
    request = _request(corpus, description, plan, settings)
    key = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
    in_cache = corpus.folder.parent / f"labels-{key[:16]}"
    folder = in_cache if out is None else Path(out)
    here.require_alike({"request": key})
    if (labels := _finished_by_any(folder, key, corpus)) is not None:
        return labels
    work = folder.with_name(f"{folder.name}.partial")
    cache = writing_cache(work.parent) if out is None else nullcontext()
    locked = locked_name(folder) if here.first else nullcontext(False)
    with cache, naming(work), locked as sure:
        if (labels := _finished_by_any(folder, key, corpus)) is not None:
            return labels  # another command has made them meanwhile
        if not here.from_first(_is_file_of(work / MANIFEST, key)):
            with here.first_does() as mine:
                if mine:
                    _continue(work, request)
            job = _Job(work, corpus, teacher, plan, settings, torch.device(device), progress)
            manifest = {
                "format": FORMAT,
                "key": key,
                **request,
                "corpus": {**request["corpus"], "name": corpus.manifest["source"]["name"]},
                "teacher": description,
                "device": str(device),
                "result": job.run(),
            }
            with here.first_does() as mine:
                if mine:
                    hashes = {name: sha256_of(work / name) for name in (LABELS, CENTROIDS)}
                    write_sealed(work / MANIFEST, {**manifest, "files": hashes})
        with here.first_does() as mine:
            if mine:
                _move(work, folder, bool(sure))
    return open_labels(folder, corpus)


def _move(work: Path, folder: Path, sure: bool) -> None:
    """Put finished labels in place."""
    for name in (*WORKING, "lock"):  # the latter is of the first version
        (work / name).unlink(missing_ok=True)
    if sure:
        remove_temporary_files(work)  # of processes that were killed
    flush(work)
    work.rename(folder)


def _finished_by_any(folder: Path, key: str, corpus: Corpus) -> Labels | None:
    """As `_finished`, where the first process looks; None means the same to all."""
    here, labels = processes.current(), None
    with here.first_does() as mine:
        if mine:
            labels = _finished(folder, key, corpus)
    if here.from_first(labels is None):
        return None
    return labels or open_labels(folder, corpus)


def _finished(folder: Path, key: str, corpus: Corpus) -> Labels | None:
    """The labels in a folder; None if it is missing or empty.

    Raises ValueError if it holds anything else than labels of the request with this key.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    if not _is_file_of(folder / MANIFEST, key):
        raise ValueError(
            f"{folder} already holds other labels or other files; choose another folder"
        )
    return open_labels(folder, corpus)


def _is_file_of(manifest: Path, key: str) -> bool:
    """Whether there is a manifest, and it is that of the request with this key."""
    return manifest.is_file() and read_object(manifest).get("key") == key


def _continue(work: Path, request: dict[str, Any]) -> None:
    """Make the folder `work` ready, without what another request has left there."""
    work.mkdir(exist_ok=True)
    if _begun(work) != request:
        for name in (*WORKING, LABELS, CENTROIDS, MANIFEST):
            (work / name).unlink(missing_ok=True)
        write_sealed(work / REQUEST, request)


def _begun(work: Path) -> dict[str, Any] | None:
    """The request that an interrupted process worked on; None if that is not known."""
    try:
        return read_object(work / REQUEST)
    except ValueError:  # it is missing or damaged, so the work begins anew
        return None


@dataclass(frozen=True)
class _Plan:
    """The pieces of the text, and which of them are clustered."""

    blocks: Blocks
    states: dict[str, Any]  # the key of the support (`Support.label_key`)
    labelled: int  # number of tokens that get a label
    bounds: list[tuple[int, int]]  # first token and end of every piece
    clustered: list[int]  # numbers of the pieces whose vectors are clustered, evenly distributed

    @staticmethod
    def of(corpus: Corpus, support: Support, settings: LabelSettings, width: int) -> _Plan:
        """The plan for a corpus and a teacher with vectors of this width.

        Raises ValueError if these do not fit the settings or the support.
        """
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
        available = len(corpus.split("train"))
        labelled = min(available, settings.label_tokens or available)
        used = min(available, max(labelled, settings.cluster_tokens))
        full_pieces = -(-settings.cluster_tokens // PIECE)
        size = settings.cluster_tokens // full_pieces
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
    """Exactly the values that determine the labels."""
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
    """The stages embedding, clustering and labelling.

    Each stage continues from its files in the folder `work`.
    """

    work: Path
    corpus: Corpus
    teacher: Teacher
    plan: _Plan
    settings: LabelSettings
    device: torch.device
    progress: Progress | None

    def run(self) -> dict[str, Any]:
        """Run all stages; returns the figures for the manifest."""
        began, here = time.monotonic(), processes.current()
        if not here.from_first((self.work / FIGURES).is_file()):
            self._embed()
            with here.first_does() as mine:  # the others wait for it
                if mine:
                    write_sealed(self.work / FIGURES, self._cluster())
        figures = read_object(self.work / FIGURES)
        counts = self._label()
        return {
            **figures,
            "used": int(np.count_nonzero(counts)),
            "largest_share": float(counts.max() / counts.sum()),
            "seconds": round(time.monotonic() - began, 2),  # since the last start
        }

    def _embed(self) -> None:
        """Append the vectors of the pieces that are clustered to a file."""
        sizes = [self._size(i) for i in self.plan.clustered]
        ends, row_bytes = np.cumsum([0, *sizes]), 2 * self.teacher.width

        def vectors(piece: int) -> np.ndarray:
            return self._vectors(*self.plan.bounds[self.plan.clustered[piece]]).cpu().numpy()

        path, bounds = self.work / VECTORS, [int(end) * row_bytes for end in ends]
        for done in _append(path, bounds, vectors):
            self._report("embedding", int(ends[done]), int(ends[-1]))

    def _cluster(self) -> dict[str, Any]:
        """Write the centroids of all states; returns figures about the clusters."""
        vectors = self._embedded()
        points, pca = vectors, None
        if self.settings.pca is not None:
            pca = fit_pca(self._chunks(vectors), self.settings.pca)
            points = self._project(vectors, pca)
        train = self.corpus.split("train")
        pieces = [self.plan.bounds[i] for i in self.plan.clustered]
        tokens = np.concatenate([train[first:last] for first, last in pieces])
        clusters = cluster_states(
            points,
            tokens,
            self.plan.blocks,
            seed=self.settings.seed,
            iterations=self.settings.iterations,
            device=self.device,
            progress=lambda done, total: self._report("clustering", done, total),
        )
        centroids, counts = clusters.centroids.cpu(), clusters.counts.cpu()
        tensors = {"centroids": centroids, "counts": counts}
        if pca is not None:
            mean, components = pca.mean.cpu(), pca.components.cpu()
            restored = PCA(mean, components, pca.share).restore(centroids)
            restored[counts == 0] = 0
            tensors = {"centroids": restored, "counts": counts, "centres": centroids}
            tensors |= {"pca.mean": mean, "pca.components": components}
        write_tensors(self.work / CENTROIDS, tensors)
        return {
            "clustered": len(tokens),
            "inertia": clusters.inertia / len(tokens),  # per token
            "variance_kept": None if pca is None else pca.share,
        }

    def _label(self) -> np.ndarray:
        """Append the labels of all pieces to a file; returns the count (Z,) of each state."""
        clusters, pca = self._clusters()
        train, dtype = self.corpus.split("train"), np.dtype(_dtype(self.plan.blocks))
        embedded = dict(zip(self.plan.clustered, self._rows(), strict=True))
        vectors, most = self._embedded(), self.plan.labelled
        pieces = [(first, min(last, most)) for first, last in self.plan.bounds if first < most]

        def states(piece: int) -> np.ndarray:
            first, last = pieces[piece]
            if piece in embedded:
                row = embedded[piece]
                x = torch.from_numpy(np.array(vectors[row : row + last - first]))
            else:
                x = self._vectors(first, last)
            x = x.to(self.device).float()
            found = clusters.label(x if pca is None else pca.project(x), train[first:last])
            return found.astype(dtype)

        path, bounds = self.work / LABELS, [0, *(last * dtype.itemsize for _, last in pieces)]
        for done in _append(path, bounds, states):
            self._report("labelling", pieces[done - 1][1], most)
        labels = np.memmap(path, dtype=dtype, mode="r")
        return np.bincount(labels, minlength=self.plan.blocks.num_states)

    def _vectors(self, first: int, last: int) -> Tensor:
        """Vectors (N, H) float16 of training tokens first … last-1, with context on both sides."""
        train, margin = self.corpus.split("train"), self.settings.reading.window
        begin, end = max(0, first - margin), min(len(train), last + margin)
        vectors = embed(
            self.teacher,
            self.corpus.tokenizer,
            train[begin:end],
            self.settings.reading,
            self.settings.pool,
        )
        return vectors[first - begin : last - begin].clamp(-LARGEST, LARGEST).half()

    def _embedded(self) -> np.ndarray:
        """The stored vectors (N, H) of all pieces that are clustered."""
        shape = (sum(map(self._size, self.plan.clustered)), self.teacher.width)
        return np.memmap(self.work / VECTORS, dtype=np.float16, mode="r", shape=shape)

    def _rows(self) -> list[int]:
        """The first row of each piece in the file of vectors."""
        sizes = [self._size(i) for i in self.plan.clustered]
        return np.cumsum([0, *sizes[:-1]]).tolist()

    def _chunks(self, vectors: np.ndarray) -> Iterator[Tensor]:
        """Vectors (N, H) in chunks (n, H) float32 on the device."""
        step = rows_at_once(1, vectors.shape[1])
        for first in range(0, len(vectors), step):
            part = np.array(vectors[first : first + step])
            yield torch.from_numpy(part).to(self.device).float()

    def _project(self, vectors: np.ndarray, pca: PCA) -> np.ndarray:
        """The principal components (N, D) of vectors (N, H), as a memory-mapped file."""
        path = self.work / PROJECTED
        with append_to(path) as file:
            file.truncate(0)
            for x in self._chunks(vectors):
                file.write(pca.project(x).cpu().numpy().tobytes())
        shape = (len(vectors), len(pca.components))
        return np.memmap(path, dtype=np.float32, mode="r", shape=shape)

    def _clusters(self) -> tuple[StateClusters, PCA | None]:
        """The clusters that `_cluster` wrote, and the projection into their space."""
        tensors = {n: t.to(self.device) for n, t in read_tensors(self.work / CENTROIDS).items()}
        centroids = tensors.get("centres", tensors["centroids"])
        clusters = StateClusters(self.plan.blocks, centroids, tensors["counts"], 0.0)
        if "centres" not in tensors:
            return clusters, None
        return clusters, PCA(tensors["pca.mean"], tensors["pca.components"], 0.0)

    def _size(self, piece: int) -> int:
        first, last = self.plan.bounds[piece]
        return last - first

    def _report(self, stage: str, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(stage, done, total)


def _append(path: Path, bounds: list[int], make: Callable[[int], np.ndarray]) -> Iterator[int]:
    """Complete a file of pieces whose bounds in bytes are given; yields how many are done.

    Several processes make one piece each at a time, and the first one appends them.
    """
    here, done = processes.current(), 0
    with contextlib.ExitStack() as stack:
        with here.first_does() as mine:
            if mine:
                file = stack.enter_context(append_to(path))
                done = int(np.searchsorted(bounds, file.tell(), side="right")) - 1  # complete ones
                done = min(done, len(bounds) - 1)
                file.truncate(bounds[done])
        done = here.from_first(done)
        while done < len(bounds) - 1:
            number = done + here.number
            made = here.to_first(make(number) if number < len(bounds) - 1 else None)
            with here.first_does() as mine:
                for piece in made or []:
                    if piece is not None:
                        file.write(piece.tobytes())
                if mine:
                    file.flush()
            done = min(done + here.count, len(bounds) - 1)
            yield done


def _dtype(blocks: Blocks) -> str:
    """The type of labels in files."""
    return "<u2" if blocks.num_states <= 1 << 16 else "<u4"
