"""k-means over points that need not fit in memory.

Lloyd's algorithm over all points: each pass reads them in chunks, finds the nearest centre of each
and moves every centre to the mean of its points. Nothing of size points × clusters is made.

The first centres are drawn from a sample as k-means++ does, each with a probability proportional to
the squared distance from the centres before it. That is one sweep over the sample for each centre,
so beyond some thousand clusters a sweep draws several at once; those of one sweep do not know of
each other, which the passes that follow make good.

Letters: N points, D their width, k clusters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bighmm.ops import memory

Points = np.ndarray | Tensor  # (N, D), possibly a memory-mapped file
Progress = Callable[[int, int], None]

CELLS = 1 << 26  # distances, or numbers of points, that are in memory at once
KEPT = 1 << 27  # numbers of points that are read once and for all; more on a GPU
SWEEPS = 1024  # over the sample, about, to draw the first centres
SPARES = 1024  # points far from their centres that are remembered for empty clusters
SAME = 1e-6  # squared distance, relative to the squared norms, that float32 cannot tell from 0


@dataclass(frozen=True, eq=False)
class Clustering:
    """Centres, and what the last pass found with them."""

    centres: Tensor  # (k, D) float32
    counts: Tensor  # (k,) points nearest to each
    inertia: float  # Σ of squared distances to the nearest centre
    history: tuple[float, ...]  # the inertia of every pass


def kmeans(
    points: Points,
    clusters: int,
    *,
    rows: np.ndarray | None = None,
    seed: int = 0,
    iterations: int = 40,
    tolerance: float = 1e-3,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> Clustering:
    """`clusters` centres for `points`, or for those of them that `rows` names.

    It ends when a pass changes the cluster of no more than a share `tolerance` of the points, or
    after `iterations` passes. A cluster without points moves to the point that is farthest from
    its own centre; only where there are fewer different points than clusters some stay empty. On a
    CPU the result is a function of the points and the seed. `progress(done, total)` counts passes.

    Raises ValueError for fewer points than clusters, for numbers that are not finite, and for
    fewer than one cluster or pass.
    """
    count = len(points) if rows is None else len(rows)
    if clusters < 1 or iterations < 1:
        raise ValueError(f"clusters and iterations must be at least 1: {clusters}, {iterations}")
    if count < clusters:
        raise ValueError(f"{count} points cannot make {clusters} clusters; more points are needed")
    read = _Reader(points, np.arange(count) if rows is None else rows, torch.device(device))
    if count * points.shape[1] <= memory.limit(KEPT, read.device):
        every = np.arange(count)
        read = _Reader(read(every), every, read.device)
    centres = _first_centres(read, clusters, torch.Generator().manual_seed(seed))
    labels = np.full(count, -1, np.int32)
    history = []
    for done in range(1, iterations + 1):
        found = _pass(read, centres, labels)
        history.append(found.inertia)
        empty = torch.nonzero(found.counts == 0).squeeze(1)
        spares = found.spares[: len(empty)]
        settled = found.changed <= tolerance * count and len(spares) == 0
        if settled or done == iterations:
            break
        if progress is not None:
            progress(done, iterations)
        some = found.counts > 0
        means = found.sums[some] / found.counts[some].unsqueeze(1)
        centres[some] = means.float()
        centres[empty[: len(spares)]] = read(spares)
    if progress is not None:
        progress(iterations, iterations)
    return Clustering(centres, found.counts, found.inertia, tuple(history))


def nearest(x: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest of `centres` (k, D) to each of x (N, D): its number and its squared distance."""
    shift = centres.mean(0)  # numbers far from zero would cost the products their digits
    moved = centres - shift
    norms = moved.square().sum(1)
    labels, distances = [], []
    for part in x.split(rows_at_once(*centres.shape)):
        found = torch.addmm(norms, part - shift, moved.T, alpha=-2).argmin(1)
        labels.append(found)
        distances.append((part - centres.index_select(0, found)).square().sum(1))
    if not labels:
        return x.new_zeros(0, dtype=torch.long), x.new_zeros(0)
    return torch.cat(labels), torch.cat(distances)


def rows_at_once(clusters: int, width: int) -> int:
    """How many points are worked on together."""
    return max(1, min(1 << 16, CELLS // max(clusters, width)))


@dataclass(frozen=True, eq=False)
class _Reader:
    """The points that are clustered, numbered 0 … N-1, as float32 on a device."""

    points: Points
    rows: np.ndarray
    device: torch.device

    def __len__(self) -> int:
        return len(self.rows)

    def __call__(self, numbers: np.ndarray) -> Tensor:
        rows = self.rows[numbers]
        if isinstance(self.points, Tensor):
            return self.points[torch.from_numpy(rows)].to(self.device).float()
        return torch.from_numpy(np.asarray(self.points[rows])).to(self.device).float()


def _first_centres(read: _Reader, clusters: int, generator: torch.Generator) -> Tensor:
    """(k, D): points of a sample, drawn by their squared distance from those drawn before."""
    size = min(len(read), max(8 * clusters, 50_000))
    sample = read(torch.randperm(len(read), generator=generator)[:size].sort().values.numpy())
    if not bool(torch.isfinite(sample).all()):
        raise ValueError("the points to be clustered hold numbers that are not finite")
    shift = sample.mean(0)
    x = sample - shift
    norms = x.square().sum(1)
    chosen = torch.randint(size, (1,), generator=generator).to(x.device)
    distances = torch.full_like(norms, torch.inf)
    new = chosen
    while True:
        apart = norms.unsqueeze(1) + norms[new]
        squared = torch.addmm(apart, x, x[new].T, alpha=-2)
        squared = torch.where(squared > SAME * apart, squared, 0).amin(1)
        distances = torch.minimum(distances, squared).index_fill(0, new, 0)
        if len(chosen) == clusters:
            return sample[chosen]
        upto = distances.double().cumsum(0)
        if float(upto[-1]) == 0:  # every point of the sample is a centre already
            others = torch.randint(size, (clusters - len(chosen),), generator=generator)
            return sample[torch.cat([chosen, others.to(x.device)])]
        wanted = min(max(1, clusters // SWEEPS), clusters - len(chosen))
        places = torch.rand(wanted, generator=generator, dtype=torch.float64).to(x.device)
        drawn = torch.searchsorted(upto, places * upto[-1], right=True).clamp(max=size - 1)
        new = drawn.unique()
        chosen = torch.cat([chosen, new])


@dataclass(frozen=True, eq=False)
class _Pass:
    sums: Tensor  # (k, D) float64, of the points of each cluster
    counts: Tensor  # (k,)
    inertia: float
    changed: int  # points that were in another cluster before
    spares: np.ndarray  # numbers of points, the farthest from their centres first


def _pass(read: _Reader, centres: Tensor, labels: np.ndarray) -> _Pass:
    """Find the nearest centre of every point and write its number into `labels`."""
    sums = torch.zeros(centres.shape, dtype=torch.float64, device=centres.device)
    counts = torch.zeros(len(centres), dtype=torch.long, device=centres.device)
    inertia, changed = 0.0, 0
    far, farthest = centres.new_zeros(0), np.zeros(0, np.int64)
    step = rows_at_once(*centres.shape)
    for first in range(0, len(read), step):
        numbers = np.arange(first, min(first + step, len(read)))
        x = read(numbers)
        found, distances = nearest(x, centres)
        sums.index_add_(0, found, x.double())
        counts += torch.bincount(found, minlength=len(centres))
        inertia += float(distances.double().sum())
        now = found.to("cpu", torch.int32).numpy()
        changed += int(np.count_nonzero(labels[numbers] != now))
        labels[numbers] = now
        far = torch.cat([far, distances])
        farthest = np.concatenate([farthest, numbers])
        kept = far.topk(min(len(far), len(centres), SPARES))
        far, farthest = kept.values, farthest[kept.indices.cpu().numpy()]
    return _Pass(sums, counts, inertia, changed, farthest[far.cpu().numpy() > 0])
