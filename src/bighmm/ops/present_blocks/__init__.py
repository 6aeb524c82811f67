"""The blocks that the words of a batch are in: nothing has to be computed for the others."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bighmm.ops.impl import Impl, use_triton

__all__ = ["Present", "present_blocks"]

MOST_BLOCKS = 2**14  # that one program counts


class Present(NamedTuple):
    """Some of the blocks, each once."""

    blocks: Tensor  # (S,) long
    place_of: Tensor  # (M,) long, where each block stands among them, -1 if it does not
    block_of: Tensor  # (V,) long, the place of each word's block, 0 if it has none


def present_blocks(
    block_of: Tensor, tokens: Tensor, num_blocks: int, count: int | None, impl: Impl = "auto"
) -> Present:
    """The blocks of some tokens, ascending, and after them others, `count` in all.

    block_of (V,) is the block of each word. Without a count there are no others; the device is then
    asked for a number.
    """
    if count is not None and num_blocks <= MOST_BLOCKS and use_triton(block_of, impl):
        from bighmm.ops.present_blocks import triton

        return Present(*triton.present_blocks(block_of, tokens, num_blocks, count))
    device = block_of.device
    here = torch.zeros(num_blocks, dtype=torch.long, device=device)
    here.index_fill_(0, block_of.index_select(0, tokens.reshape(-1)), 1)
    if count is None:
        blocks = torch.nonzero(here).squeeze(1)
    else:
        order = here.argsort(descending=True, stable=True)
        blocks = order[:count]
    place_of = torch.full((num_blocks,), -1, device=device)
    place_of.index_copy_(0, blocks, torch.arange(len(blocks), device=device))
    return Present(blocks, place_of, place_of.clamp(min=0).index_select(0, block_of))
