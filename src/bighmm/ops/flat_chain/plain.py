"""The likelihood of windows of words in blocks, with flat transitions, in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from bighmm.ops.chain import chain_log_sum
from bighmm.ops.row_norm import row_norm
from bighmm.ops.windows import Windows


def flat_chain(
    windows: Windows,
    start: Tensor,
    emitted: Tensor,
    vectors: tuple[Tensor, Tensor],
    norm: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """As `ops.flat_chain.flat_chain`, for any type of numbers."""
    leaving, entering = vectors
    norm = row_norm(leaving, entering, of_model=True) if norm is None else norm
    batch, time, size = emitted.shape
    before, at, fresh = windows.in_blocks()

    def of_block(table: Tensor, blocks: Tensor) -> Tensor:
        return table.view(-1, size, *table.shape[1:]).index_select(0, blocks)

    minus_norm = -of_block(norm, before).unsqueeze(2)
    moves = torch.baddbmm(minus_norm, of_block(leaving, before), of_block(entering, at).mT)
    anew = of_block(start, at).unsqueeze(1)
    tiles = torch.where(fresh.view(-1, 1, 1), anew, moves) + emitted.view(-1, 1, size)
    tiles = tiles.view(batch, time, size, size)
    return chain_log_sum(windows.carried, tiles, windows.lengths + 1, "loop")
