"""k-means against a plain implementation of Lloyd's algorithm, and its properties."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bighmm.distill import kmeans as module
from bighmm.distill.kmeans import kmeans, nearest


def blobs(count=300, width=5, centroids=6, seed=0):
    draw = np.random.default_rng(seed)
    where = draw.normal(size=(centroids, width)) * 8
    return (where[draw.integers(centroids, size=count)] + draw.normal(size=(count, width))).astype(
        np.float32
    )


def lloyd(points, centroids, passes):
    """The centroids, counts and inertia of the last pass, with all distances in float64."""
    points, centroids = points.astype(np.float64), centroids.astype(np.float64).copy()
    for done in range(1, passes + 1):
        squared = ((points[:, None] - centroids[None]) ** 2).sum(2)
        labels = squared.argmin(1)
        if done == passes:
            return centroids, np.bincount(labels, minlength=len(centroids)), squared.min(1).sum()
        for k in range(len(centroids)):
            if (labels == k).any():
                centroids[k] = points[labels == k].mean(0)


def first_centroids(points, clusters, seed):
    """The initial centroids of `kmeans`, which it returns after a single pass."""
    return kmeans(points, clusters, seed=seed, iterations=1).centroids.numpy()


@pytest.mark.parametrize("passes", [1, 2, 5])
def test_equals_lloyds_algorithm(passes):
    points = blobs()
    found = kmeans(points, 7, seed=3, iterations=passes, tolerance=-1)
    centroids, counts, inertia = lloyd(points, first_centroids(points, 7, 3), passes)
    assert (counts > 0).all()  # the plain algorithm does not refill empty clusters
    np.testing.assert_allclose(found.centroids.numpy(), centroids, rtol=1e-5, atol=1e-5)
    assert found.counts.tolist() == counts.tolist()
    assert found.inertia == pytest.approx(inertia, rel=1e-5)
    assert len(found.history) == passes and found.history[-1] == found.inertia


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 60), st.integers(1, 4))
def test_inertia_never_rises(seed, clusters, more, width):
    draw = np.random.default_rng(seed)
    count = clusters + more
    points = (draw.integers(0, 4, size=(count, width)) + 1000).astype(np.float32)  # many are equal
    found = kmeans(points, clusters, seed=seed, iterations=30, tolerance=0)
    for before, after in itertools.pairwise(found.history):
        assert after <= before * (1 + 1e-6) + 1e-6
    assert int(found.counts.sum()) == count
    different = len(np.unique(points, axis=0))
    assert int((found.counts > 0).sum()) <= min(clusters, different)
    if clusters >= different:
        assert found.inertia == 0 and int((found.counts > 0).sum()) == different


def test_the_result_does_not_depend_on_chunks(monkeypatch):
    points = blobs(width=3)
    whole = kmeans(points, 9, seed=1, iterations=6)
    monkeypatch.setattr(module, "CELLS", 64)  # seven points at once
    monkeypatch.setattr(module, "IN_MEMORY", 0)
    parts = kmeans(points, 9, seed=1, iterations=6)
    assert parts.counts.tolist() == whole.counts.tolist()
    torch.testing.assert_close(parts.centroids, whole.centroids)


def test_the_result_depends_on_the_seed():
    points = blobs(centroids=40)
    one, same, other = (kmeans(points, 20, seed=seed, iterations=4) for seed in (5, 5, 6))
    assert torch.equal(one.centroids, same.centroids) and one.history == same.history
    assert not torch.equal(one.centroids, other.centroids)


@pytest.mark.parametrize("in_memory", [0, 1 << 20])
def test_rows_of_a_memory_mapped_float16_file(tmp_path, monkeypatch, in_memory):
    monkeypatch.setattr(module, "IN_MEMORY", in_memory)
    points = blobs()
    rows = np.arange(1, len(points), 3)
    half = points.astype(np.float16)
    half.tofile(tmp_path / "points")
    mapped = np.memmap(tmp_path / "points", dtype=np.float16, mode="r", shape=half.shape)
    found = kmeans(mapped, 5, rows=rows, seed=2)
    wanted = kmeans(torch.from_numpy(half[rows]), 5, seed=2)
    assert torch.equal(found.centroids, wanted.centroids)
    assert int(found.counts.sum()) == len(rows)


def test_empty_clusters_move_to_the_farthest_points(monkeypatch):
    points = np.zeros((20, 2), np.float32)
    points[:4] = [[50, 0], [0, 60], [70, 70], [50, 0]]
    monkeypatch.setattr(module, "_first_centroids", lambda *_: torch.zeros(4, 2))
    found = kmeans(points, 4, tolerance=0)
    assert found.inertia == 0 and sorted(found.counts.tolist()) == [1, 1, 2, 16]


def test_as_many_clusters_as_points():
    points = blobs(count=50)
    found = kmeans(points, 50)
    assert found.inertia == 0 and found.counts.tolist() == [1] * 50


def test_equal_points_fill_one_cluster():
    found = kmeans(np.full((30, 4), 0.1, np.float32), 3)
    assert found.inertia == 0 and sorted(found.counts.tolist()) == [0, 0, 30]


def test_stops_early_when_few_points_change():
    seen = []
    found = kmeans(blobs(), 6, seed=1, iterations=100, progress=lambda *state: seen.append(state))
    assert 1 < len(found.history) < 20
    assert seen[-1] == (100, 100) and len(seen) == len(found.history)


def test_several_initial_centroids_per_sweep(monkeypatch):
    monkeypatch.setattr(module, "SWEEPS", 4)
    found = kmeans(blobs(centroids=50), 50, seed=1, iterations=5)
    assert int((found.counts > 0).sum()) == 50


def test_points_far_from_zero_are_assigned_correctly():
    points = blobs() + np.float32(1000)
    found = kmeans(points, 6, seed=1)
    labels, distances = nearest(torch.from_numpy(points), found.centroids)
    squared = ((points[:, None].astype(np.float64) - found.centroids.numpy()[None]) ** 2).sum(2)
    assert (squared[np.arange(len(points)), labels] <= squared.min(1) * 1.001 + 1e-3).all()
    np.testing.assert_allclose(distances, squared.min(1), rtol=1e-3, atol=1e-3)


def test_errors_of_wrong_arguments():
    points = blobs(count=10)
    with pytest.raises(ValueError, match="10 points cannot make 11 clusters; more points"):
        kmeans(points, 11)
    with pytest.raises(ValueError, match="at least 1: 0, 40"):
        kmeans(points, 0)
    points[3, 1] = np.nan
    with pytest.raises(ValueError, match="not finite"):
        kmeans(points, 2)
