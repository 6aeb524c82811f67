"""Two-level transitions between the states of blocks, and the likelihood with them, in torch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bighmm.ops.chain import chain_log_sum
from bighmm.ops.flat_chain.plain import Windows


class Vectors(NamedTuple):
    """What two-level transitions are made of; states of block m are m·K … (m+1)·K-1."""

    leaving: Tensor  # (Z, H)
    entering: Tensor  # (Z, H)
    choosing: Tensor  # (Z, G)
    blocks: Tensor  # (M, G), of the blocks that have states here
    bias: Tensor  # (M,)
    norm: Tensor  # (Z,) log Σ exp(choosing_i · blocks_m + bias_m) over all blocks there are

    def by_block(self, table: Tensor) -> Tensor:
        """Rows (M, K, …) of a table (Z, …)."""
        return table.view(len(self.blocks), -1, *table.shape[1:])


def tiles(vectors: Vectors, before: Tensor, after: Tensor) -> Tensor:
    """log p(j | i) (N, K, K) for the states i of blocks `before` (N,) and j of `after` (N,).

    Pairs that occur several times are computed once.
    """
    count = len(vectors.blocks)
    pairs, place = torch.unique(before * count + after, return_inverse=True)
    found = distinct_tiles(vectors, pairs // count, pairs % count)
    return found if len(pairs) == 1 and len(place) == 1 else found.index_select(0, place)


def distinct_tiles(vectors: Vectors, before: Tensor, after: Tensor) -> Tensor:
    """The same, each pair computed by itself."""
    leaving = vectors.by_block(vectors.leaving).index_select(0, before)
    entering = vectors.by_block(vectors.entering).index_select(0, after)
    moves = torch.bmm(leaving, entering.mT).log_softmax(2)
    return moves + chosen(vectors, before, after).unsqueeze(2)


def chosen(vectors: Vectors, before: Tensor, after: Tensor) -> Tensor:
    """log p(block `after` | i) (N, K) for the states i of blocks `before`; both are (N,)."""
    choosing = vectors.by_block(vectors.choosing).index_select(0, before)
    block = vectors.blocks.index_select(0, after).unsqueeze(2)
    minus_norm = vectors.bias.index_select(0, after).unsqueeze(1) - vectors.by_block(
        vectors.norm
    ).index_select(0, before)
    return torch.baddbmm(minus_norm.unsqueeze(2), choosing, block).squeeze(2)


def two_level_chain(
    windows: Windows, start: Tensor, emitted: Tensor, vectors: Vectors
) -> tuple[Tensor, Tensor]:
    """As `ops.two_level_chain.two_level_chain`, for any type of numbers."""
    batch, time, size = emitted.shape
    last = torch.cat([windows.carried_token.unsqueeze(1), windows.ids], dim=1)[:, :time]
    before = windows.block_of.index_select(0, last.reshape(-1))
    at = windows.block_of.index_select(0, windows.ids.reshape(-1))
    fresh = windows.fresh.clone()
    fresh[:, :1] = windows.carried_fresh.unsqueeze(1)
    anew = start.view(-1, size).index_select(0, at).unsqueeze(1)
    moves = torch.where(fresh.view(-1, 1, 1), anew, tiles(vectors, before, at))
    potentials = (moves + emitted.view(-1, 1, size)).view(batch, time, size, size)
    return chain_log_sum(windows.carried, potentials, windows.lengths + 1, "loop")
