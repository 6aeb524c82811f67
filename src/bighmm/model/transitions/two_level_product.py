"""Products with a large part of two-level transitions, from some states to all states of blocks.

Logits are made a piece at a time and nothing is kept. Rows without mass, and blocks that nothing
leads to, cost nothing.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from bighmm.base.interrupting import check
from bighmm.model.support.base import States
from bighmm.model.transitions.product import count_of, some_of
from bighmm.model.transitions.table import take_states
from bighmm.ops import memory
from bighmm.ops.two_level_moves import enter_blocks, leave_blocks

ROWS = 1024  # of a piece, at most: enough for a fast product with the vectors of a block


class Levels(Protocol):
    """What the product needs of two-level transitions."""

    @property
    def leaving(self) -> Tensor: ...
    @property
    def entering(self) -> Tensor: ...
    @property
    def block_size(self) -> int: ...
    def by_block(self, table: Tensor) -> Tensor: ...
    def chosen(self, rows: States, blocks: States) -> Tensor: ...


class BlockProduct:
    """Products with p(j | i) from the states `before` to all states j of `blocks`."""

    size = 0  # it keeps no numbers

    def __init__(self, transitions: Levels, before: States, blocks: States) -> None:
        """Slices must have their two ends."""
        self.transitions, self.before, self.blocks = transitions, before, blocks

    @torch.no_grad()
    def ahead(self, log_alpha: Tensor) -> Tensor:
        """log Σ_i exp(log_alpha_i) p(j | i): (B, R) -> (B, C)."""
        size = self.transitions.block_size
        shape = (len(log_alpha), count_of(self.blocks), size)
        result = log_alpha.new_full(shape, -torch.inf)
        alive = torch.nonzero((log_alpha > -torch.inf).any(0)).squeeze(1)
        for begin in range(0, len(alive), ROWS):  # none if nothing is alive
            rows = alive[begin : begin + ROWS]
            states = some_of(self.before, rows)
            leaving, log_mass = self._leaving(states), log_alpha[:, rows].unsqueeze(2)
            chosen = self.transitions.chosen(states, self.blocks)  # (r, m)
            for some in self._pieces(len(rows), count_of(self.blocks)):
                check()
                entering = self._entering(some_of(self.blocks, some))
                found = enter_blocks(leaving, entering, log_mass + chosen[:, some])
                result[:, some] = torch.logaddexp(result[:, some], found)
        return result.flatten(1)

    @torch.no_grad()
    def back(self, log_beta: Tensor) -> Tensor:
        """log Σ_j p(j | i) exp(log_beta_j): (B, C) -> (B, R)."""
        size, count = self.transitions.block_size, count_of(self.before)
        by_block = log_beta.view(len(log_beta), -1, size)
        result = log_beta.new_full((len(log_beta), count), -torch.inf)
        alive = torch.nonzero((by_block > -torch.inf).any(2).any(0)).squeeze(1)
        blocks, by_block = some_of(self.blocks, alive), by_block[:, alive]
        most = memory.at_once(size * max(1, len(alive)), log_beta.device, memory.TILE)
        step = max(ROWS, most)
        for rows in (slice(i, min(i + step, count)) for i in range(0, count, step)):
            states = some_of(self.before, rows)
            leaving = self._leaving(states)
            chosen = self.transitions.chosen(states, blocks)  # (r, m)
            for some in self._pieces(len(leaving), len(alive)):
                check()
                entering = self._entering(some_of(blocks, some))
                found = leave_blocks(leaving, entering, by_block[:, some]) + chosen[:, some]
                result[:, rows] = torch.logaddexp(result[:, rows], found.logsumexp(2))
        return result

    def _leaving(self, states: States) -> Tensor:
        return take_states(self.transitions.leaving, states)

    def _entering(self, blocks: States) -> Tensor:
        return take_states(self.transitions.by_block(self.transitions.entering), blocks)

    def _pieces(self, rows: int, blocks: int) -> list[slice]:
        """Blocks in pieces, for so many rows."""
        cost = rows * self.transitions.block_size
        return memory.pieces(blocks, cost, self.transitions.leaving.device, memory.TILE)
