"""Two-level transitions between the states of blocks, and the likelihood with them, in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from bighmm.ops.chain import chain_log_sum
from bighmm.ops.impl import use_triton
from bighmm.ops.windows import Windows


class Vectors(NamedTuple):
    """What two-level transitions are made of; states of block m are m·K … (m+1)·K-1."""

    leaving: Tensor  # (Z, H)
    entering: Tensor  # (Z, H)
    choice: Tensor  # (Z, M) log p(m | i)

    def by_block(self, table: Tensor) -> Tensor:
        """Rows (M, K, …) of a table (Z, …)."""
        return table.view(self.choice.shape[1], -1, *table.shape[1:])


def tiles(vectors: Vectors, before: Tensor, after: Tensor) -> Tensor:
    """log p(j | i) (N, K, K) for the states i of blocks `before` (N,) and j of `after` (N,)."""
    choice = vectors.by_block(vectors.choice).transpose(1, 2)
    blocks = vectors.by_block(vectors.leaving), vectors.by_block(vectors.entering)
    return shared_tiles(*blocks, before, after, lambda first, second: choice[first, second])


def shared_tiles(
    leaving: Tensor,
    entering: Tensor,
    before: Tensor,
    after: Tensor,
    chosen: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """The same from leaving and entering (M, K, H), and `chosen`, which gives log p(m | i) (P, K)
    for pairs of blocks.

    On a CPU, pairs that occur several times are computed once; to find them, a GPU would have to be
    asked for their number.
    """
    count, place = len(leaving), None
    if not use_triton(before):
        pairs, place = torch.unique(before * count + after, return_inverse=True)
        before, after = pairs // count, pairs % count
    logits = torch.bmm(leaving.index_select(0, before), entering.index_select(0, after).mT)
    found = logits.log_softmax(2) + chosen(before, after).unsqueeze(2)
    return found if place is None else found.index_select(0, place)


def two_level_chain(
    windows: Windows, start: Tensor, emitted: Tensor, vectors: Vectors
) -> tuple[Tensor, Tensor]:
    """As `ops.two_level_chain.two_level_chain`, for any type of numbers."""
    batch, time, size = emitted.shape
    before, at, fresh = windows.in_blocks()
    anew = start.view(-1, size).index_select(0, at).unsqueeze(1)
    moves = torch.where(fresh.view(-1, 1, 1), anew, tiles(vectors, before, at))
    potentials = (moves + emitted.view(-1, 1, size)).view(batch, time, size, size)
    return chain_log_sum(windows.carried, potentials, windows.lengths + 1, "loop")
