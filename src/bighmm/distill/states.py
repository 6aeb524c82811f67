"""Clusters of vectors as states of a model.

In a blocked model the states m·K … (m+1)·K-1 emit the tokens of block m, so the vectors of these
tokens are clustered separately, into K clusters. A dense model is one block with all states.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bighmm.distill.kmeans import Points, Progress, kmeans, nearest
from bighmm.model.support import Support


@dataclass(frozen=True)
class Blocks:
    """The block of every token, and the K states of each block."""

    block_of: np.ndarray | None  # (V,) int64; None: all tokens are in one block
    count: int  # M
    states: int  # K

    @property
    def num_states(self) -> int:
        return self.count * self.states

    def of(self, tokens: np.ndarray) -> np.ndarray:
        """The blocks of token ids (N,)."""
        if self.block_of is None:
            return np.zeros(len(tokens), np.int64)
        return self.block_of[tokens]


def blocks_of(support: Support) -> Blocks:
    """The blocks of a support; ValueError if it is neither dense nor blocked."""
    support.label_key()  # raises for other supports
    partition = support.partition
    if partition is None:
        return Blocks(None, 1, support.num_states)
    block_of = partition.block_of.cpu().numpy()
    return Blocks(block_of, partition.num_blocks, support.states_per_token)


@dataclass(frozen=True, eq=False)
class StateClusters:
    """The centroid of every state. A state without points has no centroid and is never a label."""

    blocks: Blocks
    centroids: Tensor  # (Z, D) float32, zeros for states without points
    counts: Tensor  # (Z,) number of points of each state
    inertia: float  # sum of squared distances to the nearest centroid

    def label(self, x: Tensor, tokens: np.ndarray) -> np.ndarray:
        """The states (N,) of tokens (N,) with vectors x (N, D).

        It is the state of the token's block with the nearest centroid, or the first state of the
        block if none of its states has a centroid.
        """
        states = np.empty(len(tokens), np.int64)
        blocks = self.blocks.of(tokens)
        for m in np.unique(blocks):
            rows = np.flatnonzero(blocks == m)
            first = int(m) * self.blocks.states
            counts = self.counts[first : first + self.blocks.states]
            used = first + torch.nonzero(counts > 0).squeeze(1)
            if len(used) == 0:
                states[rows] = first
                continue
            part = x if len(rows) == len(x) else x[torch.from_numpy(rows).to(x.device)]
            labels, _ = nearest(part, self.centroids[used])
            states[rows] = used[labels].cpu().numpy()
        return states


def cluster_states(
    points: Points,
    tokens: np.ndarray,
    blocks: Blocks,
    *,
    seed: int,
    iterations: int,
    device: torch.device | str = "cpu",
    progress: Progress | None = None,
) -> StateClusters:
    """The clusters of the vectors `points` (N, D) of `tokens` (N,), found in each block separately.

    A block with fewer points than states has as many clusters as points.
    progress: called with the number of passes (dense) or blocks (blocked) done, and of how many.
    """
    shape = (blocks.num_states, points.shape[1])
    centroids = torch.zeros(shape, device=device)
    counts = torch.zeros(blocks.num_states, dtype=torch.long, device=device)
    inertia = 0.0
    block = blocks.of(tokens)
    order = np.argsort(block, kind="stable")
    bounds = np.searchsorted(block[order], np.arange(blocks.count + 1))
    for m in range(blocks.count):
        rows = order[bounds[m] : bounds[m + 1]]
        if len(rows):
            clustering = kmeans(
                points,
                min(blocks.states, len(rows)),
                rows=rows,
                seed=seed + m,
                iterations=iterations,
                device=device,
                progress=progress if blocks.count == 1 else None,
            )
            first = m * blocks.states
            states = slice(first, first + len(clustering.centroids))
            centroids[states], counts[states] = clustering.centroids, clustering.counts
            inertia += clustering.inertia
        if progress is not None and blocks.count > 1:
            progress(m + 1, blocks.count)
    centroids[counts == 0] = 0
    return StateClusters(blocks, centroids, counts, inertia)
