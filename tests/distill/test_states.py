"""Clusters as states: of all tokens, or of every block's alone."""

import numpy as np
import pytest
import torch

from bighmm.distill.kmeans import kmeans
from bighmm.distill.states import blocks_of, cluster_states
from bighmm.model.support import Blocked, Dense, PerToken

SETTINGS = {"seed": 1, "iterations": 20}


def points(count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, 3)).astype(np.float32)


def test_dense():
    x, tokens = points(100), np.zeros(100, np.uint16)
    found = cluster_states(x, tokens, blocks_of(Dense(7, 5)), **SETTINGS)
    wanted = kmeans(x, 7, **SETTINGS)
    assert torch.equal(found.centres, wanted.centres) and found.inertia == wanted.inertia
    labels = found.label(torch.from_numpy(x), tokens)
    assert np.bincount(labels, minlength=7).tolist() == wanted.counts.tolist()


def test_blocks_are_clustered_on_their_own():
    """Tokens 0 and 3 are in block 0, 1 in block 1 (three times), 2 in block 2 (never)."""
    support = Blocked.of(torch.tensor([0, 1, 2, 0]), 12)
    draw = np.random.default_rng(1)
    tokens = np.where(draw.random(60) < 0.5, 0, 3).astype(np.uint16)
    tokens[[5, 20, 41]] = 1
    x = points(60)
    found = cluster_states(x, tokens, blocks_of(support), **SETTINGS)
    assert (found.counts[:4] > 0).all() and int(found.counts[:4].sum()) == 57
    assert found.counts[4:8].tolist() == [1, 1, 1, 0] and found.counts[8:].tolist() == [0] * 4
    assert not found.centres[7:].any()
    own = kmeans(x[tokens != 1], 4, **SETTINGS)
    torch.testing.assert_close(found.centres[:4], own.centres)
    assert found.inertia == pytest.approx(own.inertia)

    labels = found.label(torch.from_numpy(x), tokens)
    assert (labels // 4 == support.partition.block_of.numpy()[tokens]).all()
    assert sorted(labels[tokens == 1]) == [4, 5, 6]
    states = support.states(torch.from_numpy(tokens.astype(np.int64)))
    assert (states == torch.from_numpy(labels).unsqueeze(1)).any(1).all()  # each may emit its token
    # A block that was never seen has no centres.
    assert found.label(torch.zeros(2, 3), np.array([2, 2])).tolist() == [8, 8]


def test_states_without_points_label_nothing():
    x = np.zeros((10, 3), np.float32)
    found = cluster_states(x, np.zeros(10, np.uint16), blocks_of(Dense(3, 1)), **SETTINGS)
    used = int(found.counts.argmax())
    assert sorted(found.counts.tolist()) == [0, 0, 10]
    assert found.label(torch.zeros(4, 3), np.zeros(4, np.uint16)).tolist() == [used] * 4


def test_label_keys_tell_partitions_apart():
    first, second = (
        Blocked.of(torch.tensor(blocks), 4).label_key() for blocks in ([0, 1, 1], [0, 0, 1])
    )
    assert first["blocks"] == 2 and first["states"] == 4 and first != second
    assert Dense(4, 3).label_key() == {"kind": "dense", "states": 4}


def test_lists_of_states_have_no_blocks():
    with pytest.raises(ValueError, match="dense and blocked models; a per-token one has no blocks"):
        blocks_of(PerToken.random(10, 6, 3, seed=0))
