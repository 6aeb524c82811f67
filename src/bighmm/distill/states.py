"""Clusters as states: one clustering for a dense model, one in every block for a blocked one.

The tokens of block m are emitted by the states m·K … (m+1)·K-1, so their vectors are clustered on
their own, into K clusters. A dense model is one block with all states.
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
    """ValueError for a support whose tokens share no blocks."""
    support.label_key()
    partition = support.partition
    if partition is None:
        return Blocks(None, 1, support.num_states)
    block_of = partition.block_of.cpu().numpy()
    return Blocks(block_of, partition.num_blocks, support.states_per_token)


@dataclass(frozen=True, eq=False)
class StateClusters:
    """The centre of every state; a state without points has none, and labels nothing."""

    blocks: Blocks
    centres: Tensor  # (Z, D) float32, zeros where there are no points
    counts: Tensor  # (Z,) points of each
    inertia: float  # Σ of squared distances to the nearest centre

    def label(self, x: Tensor, tokens: np.ndarray) -> np.ndarray:
        """States (N,) of tokens (N,) with vectors x (N, D): in its block, the nearest one.

        A token of a block that had no points gets the block's first state.
        """
        found = np.empty(len(tokens), np.int64)
        blocks = self.blocks.of(tokens)
        for m in np.unique(blocks):
            rows = np.flatnonzero(blocks == m)
            first = int(m) * self.blocks.states
            counts = self.counts[first : first + self.blocks.states]
            used = first + torch.nonzero(counts > 0).squeeze(1)
            if len(used) == 0:
                found[rows] = first
                continue
            part = x if len(rows) == len(x) else x[torch.from_numpy(rows).to(x.device)]
            labels, _ = nearest(part, self.centres[used])
            found[rows] = used[labels].cpu().numpy()
        return found


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
    """k-means of the vectors `points` (N, D) of `tokens` (N,), in each block on its own.

    A block with fewer points than states has as many clusters as points. `progress(done, total)`
    counts passes of a dense model, blocks of a blocked one.
    """
    shape = (blocks.num_states, points.shape[1])
    centres = torch.zeros(shape, device=device)
    counts = torch.zeros(blocks.num_states, dtype=torch.long, device=device)
    inertia = 0.0
    block = blocks.of(tokens)
    order = np.argsort(block, kind="stable")
    bounds = np.searchsorted(block[order], np.arange(blocks.count + 1))
    for m in range(blocks.count):
        rows = order[bounds[m] : bounds[m + 1]]
        if len(rows):
            found = kmeans(
                points,
                min(blocks.states, len(rows)),
                rows=rows,
                seed=seed + m,
                iterations=iterations,
                device=device,
                progress=progress if blocks.count == 1 else None,
            )
            here = slice(m * blocks.states, m * blocks.states + len(found.centres))
            centres[here], counts[here] = found.centres, found.counts
            inertia += found.inertia
        if progress is not None and blocks.count > 1:
            progress(m + 1, blocks.count)
    centres[counts == 0] = 0
    return StateClusters(blocks, centres, counts, inertia)
