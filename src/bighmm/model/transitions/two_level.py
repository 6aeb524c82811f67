"""Transitions in two levels: first the block of the next state is drawn, then the state in it.

    p(j | i) = p(m | i) p(j | m, i),                            m the block of j
    p(m | i) ∝ exp(choosing_i · blocks_m + bias_m)              over the M blocks
    p(j | m, i) ∝ exp(leaving_i · entering_j)                   over the K states of block m

This is the class-factored softmax of word models (Goodman 2001), here over states. Where the next
word is known, so is its block: a text needs one K × K tile for each pair of neighbouring words and
nothing of size Z × Z. Any matrix of transitions can be written so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from bighmm.base.caching import cached
from bighmm.model.support.base import States, Support
from bighmm.model.transitions.base import EVERY, BlockedChain, Transitions, register_transitions
from bighmm.model.transitions.table import take_states
from bighmm.ops import memory
from bighmm.ops.block_choice import block_choice
from bighmm.ops.flat_chain import Windows
from bighmm.ops.gather import take_rows
from bighmm.ops.impl import Impl
from bighmm.ops.two_level_chain import Vectors, tiles, two_level_chain


@register_transitions
@dataclass(frozen=True, eq=False)
class TwoLevel(Transitions):
    """Logits of blocks choosing · blocksᵀ + bias, and of states within a block leaving · enteringᵀ.

    With `present` (S,), the vectors of states are those of these blocks alone, K for each. The
    probabilities of blocks are still those among all M, so a row sums to less than one. Such a part
    of a model serves for texts that have no other blocks.
    """

    family: ClassVar[str] = "two-level"
    capturable: ClassVar[bool] = True

    leaving: Tensor  # (Z, H)
    entering: Tensor  # (Z, H)
    choosing: Tensor  # (Z, G)
    blocks: Tensor  # (M, G)
    bias: Tensor  # (M,)
    rounded: bool = False  # the values are those of bfloat16, so kernels may multiply them
    present: Tensor | None = None  # (S,)

    @property
    def num_states(self) -> int:
        return len(self.leaving)

    @property
    def num_blocks(self) -> int:
        """How many blocks have states here."""
        return len(self.blocks) if self.present is None else len(self.present)

    @property
    def block_size(self) -> int:
        """K."""
        return self.num_states // self.num_blocks

    @property
    def operands(self) -> tuple[Tensor, ...]:
        return (self.leaving, self.entering, self.choosing, self.blocks, self.bias)

    def with_operands(self, *operands: Tensor) -> TwoLevel:
        leaving, entering, choosing, blocks, bias = operands
        return TwoLevel(leaving, entering, choosing, blocks, bias, self.rounded, self.present)

    @property
    def choice(self) -> Tensor:
        """log p(m | i) (Z, M) of the blocks that have states here, cached."""
        return cached(self, "_choice", self.operands, self._compute_choice)

    @property
    def vectors(self) -> Vectors:
        return Vectors(self.leaving, self.entering, self.choice)

    def log_probs(
        self, rows: States = EVERY, columns: States = EVERY, into: Tensor | None = None
    ) -> Tensor:
        size = self.block_size
        if isinstance(columns, slice):
            first, last, _ = columns.indices(self.num_states)
            begin, end = first // size, -(-last // size)  # whole blocks that have these columns
            found = self._of_blocks(rows, slice(begin, end))[:, first - begin * size :]
            found = found[:, : last - first]
        else:
            some, place = torch.unique(columns // size, return_inverse=True)
            found = self._of_blocks(rows, some).index_select(1, place * size + columns % size)
        return found if into is None else into.copy_(found)

    def between(self, before: Tensor, after: Tensor) -> Tensor:
        size, vectors = self.block_size, self.vectors
        block, within = after // size, (after % size).unsqueeze(1)
        leaving = self.leaving.index_select(0, before)
        parts = []
        for some in memory.pieces(len(after), size * leaving.shape[1], leaving.device):
            entering = vectors.by_block(self.entering).index_select(0, block[some])
            logits = torch.bmm(entering, leaving[some].unsqueeze(2)).squeeze(2)
            parts.append(logits.log_softmax(1).gather(1, within[some]).squeeze(1))
        moved = torch.cat(parts) if parts else leaving.new_zeros(0)
        cells = before * self.num_blocks + block
        return moved + self.choice.reshape(-1).index_select(0, cells)

    def tiles(self, support: Support, before: Tensor, after: Tensor) -> Tensor:
        blocks = support.partition
        if blocks is None or blocks.num_blocks != self.num_blocks:
            raise ValueError(
                f"two-level transitions need a support with their {self.num_blocks} blocks, not a "
                f"{support.kind} one"
            )
        block_of = blocks.block_of
        return tiles(
            self.vectors, block_of.index_select(0, before), block_of.index_select(0, after)
        )

    def restrict(self, kept: Tensor) -> TwoLevel:
        """Over the states `kept` (Z',), of which every block has the same number."""
        vectors = (
            take_rows(x, kept, self._impl) for x in (self.leaving, self.entering, self.choosing)
        )
        return self.with_operands(*vectors, self.blocks, self.bias)

    def precompute(self) -> None:
        _ = self.choice

    def blocked_chain(self) -> BlockedChain | None:
        return self._blocked_chain if self._impl == "auto" else None

    def settings(self) -> dict[str, Any]:
        return {"rounded": self.rounded}

    @property
    def _impl(self) -> Impl:
        return "auto" if self.rounded and self.leaving.dtype == torch.float32 else "torch"

    def _compute_choice(self) -> Tensor:
        return block_choice(self.choosing, self.blocks, self.bias, self.present, self._impl)

    def _of_blocks(self, rows: States, blocks: States) -> Tensor:
        """log p(j | i) (R, m·K) for all states j of some blocks, one after the other."""
        vectors, size = self.vectors, self.block_size
        entering = take_states(vectors.by_block(self.entering), blocks)
        leaving = take_states(self.leaving, rows)
        moves = (leaving @ entering.reshape(-1, entering.shape[2]).T).view(len(leaving), -1, size)
        chosen = take_states(self.choice, rows)[:, blocks]
        return (moves.log_softmax(2) + chosen.unsqueeze(2)).view(len(leaving), -1)

    def _blocked_chain(
        self, windows: Windows, start: Tensor, emitted: Tensor
    ) -> tuple[Tensor, Tensor]:
        return two_level_chain(windows, start, emitted, self.vectors, "triton")
