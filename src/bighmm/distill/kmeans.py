"""k-means clustering of points that need not fit in memory.

This is Lloyd's algorithm. Each pass over the points reads them in chunks, finds the nearest
centroid of each point, and moves every centroid to the mean of its points. No array of size
points × clusters is computed.

The initial centroids are drawn from a sample of the points as in k-means++: the probability of a
point is proportional to its squared distance from the nearest centroid so far. k-means++ needs one
sweep over the sample for each centroid. For more than `SWEEPS` clusters, several centroids are
drawn in one sweep, independently of each other; the later passes correct this.

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

CELLS = 1 << 26  # the most distances, or coordinates of points, of one chunk
IN_MEMORY = 1 << 27  # the most coordinates of all points that are read only once; more on a GPU
SWEEPS = 1024  # the approximate number of sweeps that draw the initial centroids
SPARES = 1024  # the most points far from their centroids that are stored for empty clusters
ZERO_DISTANCE = 1e-6  # squared distance, relative to the squared norms, that counts as 0 in float32


@dataclass(frozen=True, eq=False)
class Clustering:
    """Centroids, and the figures of the last pass."""

    centroids: Tensor  # (k, D) float32
    counts: Tensor  # (k,) number of points of each cluster
    inertia: float  # sum of squared distances to the nearest centroid
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
    """The clusters of `points` (N, D).

    clusters: their number k.
    rows: the points to cluster; by default all.
    iterations: the largest number of passes. They end early when at most a share `tolerance` of the
        points changed its cluster.
    progress: called with the number of passes done, and of how many.

    A cluster without points moves to the point that is farthest from its centroid. So clusters stay
    empty only if there are fewer different points than clusters. On a CPU the result depends only
    on the points and the seed.

    Raises ValueError for fewer points than clusters, coordinates that are not finite, and fewer
    than one cluster or pass.
    """
    count = len(points) if rows is None else len(rows)
    if clusters < 1 or iterations < 1:
        raise ValueError(f"clusters and iterations must be at least 1: {clusters}, {iterations}")
    if count < clusters:
        raise ValueError(f"{count} points cannot make {clusters} clusters; more points are needed")
    read = _Reader(points, np.arange(count) if rows is None else rows, torch.device(device))
    if count * points.shape[1] <= memory.limit(IN_MEMORY, read.device):
        every = np.arange(count)
        read = _Reader(read(every), every, read.device)
    centroids = _first_centroids(read, clusters, torch.Generator().manual_seed(seed))
    labels = np.full(count, -1, np.int32)
    history = []
    for done in range(1, iterations + 1):
        result = _pass(read, centroids, labels)
        history.append(result.inertia)
        empty = torch.nonzero(result.counts == 0).squeeze(1)
        spares = result.spares[: len(empty)]
        settled = result.changed <= tolerance * count and len(spares) == 0
        if settled or done == iterations:
            break
        if progress is not None:
            progress(done, iterations)
        used = result.counts > 0
        means = result.sums[used] / result.counts[used].unsqueeze(1)
        centroids[used] = means.float()
        centroids[empty[: len(spares)]] = read(spares)
    if progress is not None:
        progress(iterations, iterations)
    return Clustering(centroids, result.counts, result.inertia, tuple(history))


def nearest(x: Tensor, centroids: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest of `centroids` (k, D) to each point x (N, D), and its squared distance: (N,)."""
    shift = centroids.mean(0)  # products of numbers far from zero would lose digits
    shifted = centroids - shift
    norms = shifted.square().sum(1)
    labels, distances = [], []
    for part in x.split(rows_at_once(*centroids.shape)):
        label = torch.addmm(norms, part - shift, shifted.T, alpha=-2).argmin(1)
        labels.append(label)
        distances.append((part - centroids.index_select(0, label)).square().sum(1))
    if not labels:
        return x.new_zeros(0, dtype=torch.long), x.new_zeros(0)
    return torch.cat(labels), torch.cat(distances)


def rows_at_once(clusters: int, width: int) -> int:
    """The number of points of one chunk."""
    return max(1, min(1 << 16, CELLS // max(clusters, width)))


@dataclass(frozen=True, eq=False)
class _Reader:
    """Reads the points that are clustered, numbered 0 … N-1, as float32 on a device."""

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


def _first_centroids(read: _Reader, clusters: int, generator: torch.Generator) -> Tensor:
    """Initial centroids (k, D), drawn from a sample of the points as in k-means++."""
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
        norm_sums = norms.unsqueeze(1) + norms[new]
        squared = torch.addmm(norm_sums, x, x[new].T, alpha=-2)
        squared = torch.where(squared > ZERO_DISTANCE * norm_sums, squared, 0).amin(1)
        distances = torch.minimum(distances, squared).index_fill(0, new, 0)
        if len(chosen) == clusters:
            return sample[chosen]
        cumulative = distances.double().cumsum(0)
        if float(cumulative[-1]) == 0:  # every point of the sample is a centroid already
            others = torch.randint(size, (clusters - len(chosen),), generator=generator)
            return sample[torch.cat([chosen, others.to(x.device)])]
        number = min(max(1, clusters // SWEEPS), clusters - len(chosen))
        places = torch.rand(number, generator=generator, dtype=torch.float64).to(x.device)
        drawn = torch.searchsorted(cumulative, places * cumulative[-1], right=True)
        new = drawn.clamp(max=size - 1).unique()
        chosen = torch.cat([chosen, new])


@dataclass(frozen=True, eq=False)
class _PassResult:
    sums: Tensor  # (k, D) float64, sums of the points of each cluster
    counts: Tensor  # (k,)
    inertia: float
    changed: int  # number of points that were in another cluster before
    spares: np.ndarray  # numbers of the points farthest from their centroids, farthest first


def _pass(read: _Reader, centroids: Tensor, labels: np.ndarray) -> _PassResult:
    """Assign every point to its nearest centroid; writes the cluster of each point to `labels`."""
    sums = torch.zeros(centroids.shape, dtype=torch.float64, device=centroids.device)
    counts = torch.zeros(len(centroids), dtype=torch.long, device=centroids.device)
    inertia, changed = 0.0, 0
    far, farthest = centroids.new_zeros(0), np.zeros(0, np.int64)
    step = rows_at_once(*centroids.shape)
    for first in range(0, len(read), step):
        numbers = np.arange(first, min(first + step, len(read)))
        x = read(numbers)
        label, distances = nearest(x, centroids)
        sums.index_add_(0, label, x.double())
        counts += torch.bincount(label, minlength=len(centroids))
        inertia += float(distances.double().sum())
        new_labels = label.to("cpu", torch.int32).numpy()
        changed += int(np.count_nonzero(labels[numbers] != new_labels))
        labels[numbers] = new_labels
        far = torch.cat([far, distances])
        farthest = np.concatenate([farthest, numbers])
        top = far.topk(min(len(far), len(centroids), SPARES))
        far, farthest = top.values, farthest[top.indices.cpu().numpy()]
    return _PassResult(sums, counts, inertia, changed, farthest[far.cpu().numpy() > 0])
