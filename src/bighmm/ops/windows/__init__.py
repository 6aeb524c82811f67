"""Windows of words in blocks, as the likelihoods of blocked models read them.

`triton` has them in terms of blocks, from one kernel, and the expected uses of states that follow
from the sweeps of `ops.chain`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Windows"]


class Windows(NamedTuple):
    """A batch of windows of words, and the state that is carried into each."""

    ids: Tensor  # (B, T) long
    fresh: Tensor  # (B, T) bool, the state is drawn from the start distribution; not for t = 0
    lengths: Tensor  # (B,) long
    block_of: Tensor  # (V,) long, the block of every word
    carried: Tensor  # (B, K) log p(state | what came before), over the block of the last word
    carried_token: Tensor  # (B,) long, that word
    carried_fresh: Tensor  # (B,) bool, the first state of the window is drawn anew

    def in_blocks(self) -> tuple[Tensor, Tensor, Tensor]:
        """The block of the word before each position and of its own (B·T,), and where a state is
        drawn from the start distribution (B, T)."""
        time = self.ids.shape[1]
        last = torch.cat([self.carried_token.unsqueeze(1), self.ids], dim=1)[:, :time]
        before = self.block_of.index_select(0, last.reshape(-1))
        at = self.block_of.index_select(0, self.ids.reshape(-1))
        fresh = self.fresh.clone()
        fresh[:, :1] = self.carried_fresh.unsqueeze(1)
        return before, at, fresh
