"""The likelihood of windows of words in blocks, with flat transitions, in torch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bighmm.ops.chain import chain_log_sum
from bighmm.ops.row_norm import row_norm


class Windows(NamedTuple):
    """A batch of windows of words, and the state that is carried into each."""

    ids: Tensor  # (B, T) long
    fresh: Tensor  # (B, T) bool, the state is drawn from the start distribution; not for t = 0
    lengths: Tensor  # (B,) long
    block_of: Tensor  # (V,) long, the block of every word
    carried: Tensor  # (B, K) log p(state | what came before), over the block of the last word
    carried_token: Tensor  # (B,) long, that word
    carried_fresh: Tensor  # (B,) bool, the first state of the window is drawn anew


def flat_chain(
    windows: Windows,
    start: Tensor,
    emitted: Tensor,
    vectors: tuple[Tensor, Tensor],
    norm: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """As `ops.flat_chain.flat_chain`, for any type of numbers."""
    leaving, entering = vectors
    norm = row_norm(leaving, entering) if norm is None else norm
    batch, time, size = emitted.shape
    last = torch.cat([windows.carried_token.unsqueeze(1), windows.ids], dim=1)[:, :time]
    before = windows.block_of.index_select(0, last.reshape(-1))
    at = windows.block_of.index_select(0, windows.ids.reshape(-1))
    fresh = windows.fresh.clone()
    fresh[:, :1] = windows.carried_fresh.unsqueeze(1)

    def of_block(table: Tensor, blocks: Tensor) -> Tensor:
        return table.view(-1, size, *table.shape[1:]).index_select(0, blocks)

    minus_norm = -of_block(norm, before).unsqueeze(2)
    moves = torch.baddbmm(minus_norm, of_block(leaving, before), of_block(entering, at).mT)
    anew = of_block(start, at).unsqueeze(1)
    tiles = torch.where(fresh.view(-1, 1, 1), anew, moves) + emitted.view(-1, 1, size)
    tiles = tiles.view(batch, time, size, size)
    return chain_log_sum(windows.carried, tiles, windows.lengths + 1, "loop")
