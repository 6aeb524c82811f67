"""Clusters as states of dense and of blocked models."""

import numpy as np
import pytest
import torch

from bighmm.distill.kmeans import kmeans
from bighmm.distill.states import blocks_of, cluster_states
from bighmm.model.support import Blocked, Dense, PerToken

SETTINGS = {"seed": 1, "iterations": 20}


def points(count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, 3)).astype(np.float32)


def test_states_of_a_dense_model():
    x, tokens = points(100), np.zeros(100, np.uint16)
    found = cluster_states(x, tokens, blocks_of(Dense(7, 5)), **SETTINGS)
    wanted = kmeans(x, 7, **SETTINGS)
    assert torch.equal(found.centroids, wanted.centroids) and found.inertia == wanted.inertia
    labels = found.label(torch.from_numpy(x), tokens)
    assert np.bincount(labels, minlength=7).tolist() == wanted.counts.tolist()


def test_blocks_are_clustered_separately():
    """Block 0 has tokens 0 and 3; block 1 token 1, three times; block 2 token 2, never."""
    support = Blocked.of(torch.tensor([0, 1, 2, 0]), 12)
    draw = np.random.default_rng(1)
    tokens = np.where(draw.random(60) < 0.5, 0, 3).astype(np.uint16)
    tokens[[5, 20, 41]] = 1
    x = points(60)
    found = cluster_states(x, tokens, blocks_of(support), **SETTINGS)
    assert (found.counts[:4] > 0).all() and int(found.counts[:4].sum()) == 57
    assert found.counts[4:8].tolist() == [1, 1, 1, 0] and found.counts[8:].tolist() == [0] * 4
    assert not found.centroids[7:].any()
    own = kmeans(x[tokens != 1], 4, **SETTINGS)
    torch.testing.assert_close(found.centroids[:4], own.centroids)
    assert found.inertia == pytest.approx(own.inertia)

    labels = found.label(torch.from_numpy(x), tokens)
    assert (labels // 4 == support.partition.block_of.numpy()[tokens]).all()
    assert sorted(labels[tokens == 1]) == [4, 5, 6]
    states = support.states(torch.from_numpy(tokens.astype(np.int64)))
    assert (states == torch.from_numpy(labels).unsqueeze(1)).any(1).all()  # it can emit its token
    # A block without points has no centroids.
    assert found.label(torch.zeros(2, 3), np.array([2, 2])).tolist() == [8, 8]


def test_states_without_points_are_never_labels():
    x = np.zeros((10, 3), np.float32)
    found = cluster_states(x, np.zeros(10, np.uint16), blocks_of(Dense(3, 1)), **SETTINGS)
    used = int(found.counts.argmax())
    assert sorted(found.counts.tolist()) == [0, 0, 10]
    assert found.label(torch.zeros(4, 3), np.zeros(4, np.uint16)).tolist() == [used] * 4


def test_label_keys_of_different_partitions_differ():
    first, second = (
        Blocked.of(torch.tensor(blocks), 4).label_key() for blocks in ([0, 1, 1], [0, 0, 1])
    )
    assert first["blocks"] == 2 and first["states"] == 4 and first != second
    assert Dense(4, 3).label_key() == {"kind": "dense", "states": 4}


def test_error_of_a_per_token_model():
    with pytest.raises(ValueError, match="dense and blocked models; a per-token one has no blocks"):
        blocks_of(PerToken.random(10, 6, 3, seed=0))
