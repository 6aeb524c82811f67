"""Transitions in two levels: first the block of the next state is drawn, then the state in it.

    p(j | i) = p(m | i) p(j | m, i),                            m the block of j
    p(m | i) ∝ exp(choosing_i · blocks_m + bias_m)              over the M blocks
    p(j | m, i) ∝ exp(leaving_i · entering_j)                   over the K states of block m

This is the class-factored softmax of word models (Goodman 2001), here over states. Where the next
word is known, so is its block: a text needs one K × K tile for each pair of neighbouring words and
nothing of size Z × Z. Any matrix of transitions can be written so.

log p(m | i) is a table Z × M while that is small. Beyond, its entries are computed when asked, and
only its normalisers (Z,) are cached.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from bighmm.base.caching import cached, cached_object, needs_gradient
from bighmm.model.support.base import States, Support
from bighmm.model.transitions.base import EVERY, BlockedChain, Transitions, register_transitions
from bighmm.model.transitions.product import Product, bounded, count_of, some_of
from bighmm.model.transitions.table import take_states
from bighmm.model.transitions.two_level_product import BlockProduct
from bighmm.ops import memory
from bighmm.ops.block_choice import block_choice
from bighmm.ops.drawing import draw, draw_many
from bighmm.ops.gather import take_rows
from bighmm.ops.impl import Impl
from bighmm.ops.partition import Partition
from bighmm.ops.row_norm import row_norm
from bighmm.ops.two_level_chain import Vectors, shared_tiles, two_level_chain
from bighmm.ops.windows import Windows


@register_transitions
@dataclass(frozen=True, eq=False)
class TwoLevel(Transitions):
    """Logits of blocks choosing · blocksᵀ + bias, and of states within a block leaving · enteringᵀ.

    With `present` (S,), the vectors of states are those of these blocks alone, K for each. The
    probabilities of blocks are still those among all M, so a row sums to less than one. Such a part
    of a model serves for texts that have no other blocks.

    Raises ValueError where the states cannot be shared equally by the blocks.
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

    def __post_init__(self) -> None:
        if self.num_states % max(1, self.num_blocks) or self.num_blocks == 0:
            raise ValueError(
                f"{self.num_states} states cannot be shared equally by {self.num_blocks} blocks; "
                "two-level transitions need a multiple of the blocks"
            )

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
    def grain(self) -> int:
        return self.block_size

    @property
    def operands(self) -> tuple[Tensor, ...]:
        return (self.leaving, self.entering, self.choosing, self.blocks, self.bias)

    def with_operands(self, *operands: Tensor) -> TwoLevel:
        leaving, entering, choosing, blocks, bias = operands
        present = None if self.present is None else self.present.to(leaving.device)
        return TwoLevel(leaving, entering, choosing, blocks, bias, self.rounded, present)

    @property
    def keeps_choice(self) -> bool:
        """Whether log p(m | i) is small enough to be a table."""
        most = memory.limit(memory.CACHED, self.leaving.device)
        return self.num_states * self.num_blocks <= most

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
        rows, columns = bounded(rows, self.num_states), bounded(columns, self.num_states)
        blocks, places = self._cover(columns)
        height, width = count_of(rows), count_of(columns)
        cost = self.block_size * count_of(blocks)
        if height * width == 0:
            return self.leaving.new_empty(height, width) if into is None else into
        if needs_gradient(self.operands) or height * cost <= self._at_once:
            found = _take_columns(self._of_blocks(rows, blocks), places)
            return found if into is None else into.copy_(found)
        result = self.leaving.new_empty(height, width) if into is None else into
        for some in memory.pieces(height, cost, self.leaving.device):
            result[some] = _take_columns(self._of_blocks(some_of(rows, some), blocks), places)
        return result

    def between(self, before: Tensor, after: Tensor) -> Tensor:
        size = self.block_size
        block, within = after // size, (after % size).unsqueeze(1)
        leaving = self.leaving.index_select(0, before)
        parts = []
        for some in memory.pieces(len(after), size * leaving.shape[1], leaving.device):
            entering = self.by_block(self.entering).index_select(0, block[some])
            logits = torch.bmm(entering, leaving[some].unsqueeze(2)).squeeze(2)
            parts.append(logits.log_softmax(1).gather(1, within[some]).squeeze(1))
        moved = torch.cat(parts) if parts else leaving.new_zeros(0)
        if self.keeps_choice:
            cells = before * self.num_blocks + block
            return moved + self.choice.reshape(-1).index_select(0, cells)
        chosen = self._present.index_select(0, block)
        logits = self.choosing.index_select(0, before) * self.blocks.index_select(0, chosen)
        bias = self.bias.index_select(0, chosen)
        return moved + logits.sum(1) + bias - self._choice_norm(before)

    def tiles(self, support: Support, before: Tensor, after: Tensor) -> Tensor:
        block_of = self._blocks_of(support).block_of
        before, after = block_of.index_select(0, before), block_of.index_select(0, after)
        leaving, entering = self.by_block(self.leaving), self.by_block(self.entering)
        return shared_tiles(leaving, entering, before, after, self._chosen_after)

    def next_states(
        self, support: Support, tokens: Tensor, log_alpha: Tensor, blocks: Tensor | None = None
    ) -> Tensor:
        """As of `Transitions`. From one token it costs 2 K Z H operations, whatever M."""
        width = self.num_states if blocks is None else len(blocks) * self.block_size
        batched = len(tokens) > 1 and log_alpha.numel() * width <= self._at_once
        if batched or not self._has_blocks_of(support):
            return super().next_states(support, tokens, log_alpha, blocks)
        here = self._blocks_of(support).block_of.index_select(0, tokens)
        result = log_alpha.new_empty(len(tokens), width)
        for block in here.unique().tolist():  # rows of the same block share their logits
            rows = torch.nonzero(here == block).squeeze(1)
            entered = slice(0, self.num_blocks) if blocks is None else blocks
            part = BlockProduct(self, self._block(block), entered)
            result[rows] = part.ahead(log_alpha[rows])
        return result

    @torch.no_grad()
    def next_blocks(self, support: Support, tokens: Tensor, log_alpha: Tensor) -> Tensor | None:
        if not self._has_blocks_of(support) or self.present is not None:
            return None
        states = support.states(tokens)
        result = log_alpha.new_empty(len(tokens), len(self.blocks))
        cost = states.shape[1] * len(self.blocks)
        for part in memory.pieces(len(tokens), cost, log_alpha.device):
            chosen = self._choice_rows(states[part].reshape(-1))
            weighted = chosen.view(-1, states.shape[1], len(self.blocks))
            result[part] = (weighted + log_alpha[part].unsqueeze(2)).logsumexp(1)
        return result

    @torch.no_grad()
    def draw(
        self, states: Tensor, fresh: Tensor, start: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        """As of `Transitions`: first a block, then a state of it, from M + K logits for each."""
        if self.present is not None:
            return super().draw(states, fresh, start, generator)
        drawn, size = [], self.block_size
        cost = max(len(self.blocks), self.entering.shape[1] * size)
        for some in states.split(memory.at_once(cost, states.device)):
            block = draw(self._choice_rows(some), generator)
            entering = self.by_block(self.entering).index_select(0, block)  # (N, K, H)
            leaving = self.leaving.index_select(0, some)
            within = draw(torch.bmm(entering, leaving.unsqueeze(2)).squeeze(2), generator)
            drawn.append(block * size + within)
        found = torch.cat(drawn) if drawn else states
        anew = torch.nonzero(fresh).squeeze(1)
        return found.index_copy(0, anew, draw_many(start, len(anew), generator))

    def product(self, before: States = EVERY, after: States = EVERY) -> Product:
        """As of `Transitions`.

        From all states to all it takes 2 Z² H operations at every call, since each state has its
        own distribution within every block. States and blocks without mass are left out.
        """
        part, columns = bounded(before, self.num_states), bounded(after, self.num_states)
        height, width = count_of(part), count_of(columns)
        blocks, _ = self._cover(columns)
        whole = isinstance(blocks, slice) and count_of(blocks) * self.block_size == width
        if height * width <= memory.CACHED or not whole:
            return super().product(before, after)
        return BlockProduct(self, part, blocks)

    def restrict(self, kept: Tensor) -> TwoLevel:
        """Over the states `kept` (Z',), of which every block has the same number.

        Raises ValueError where the numbers differ, which is looked at on a CPU only.
        """
        if not kept.is_cuda:
            counts = torch.bincount(kept // self.block_size, minlength=self.num_blocks)
            if int(counts.min()) != int(counts.max()):
                raise ValueError(
                    "two-level transitions are restricted to as many states of every block, not "
                    f"to between {int(counts.min())} and {int(counts.max())}"
                )
        vectors = (
            take_rows(x, kept, self._impl) for x in (self.leaving, self.entering, self.choosing)
        )
        return self.with_operands(*vectors, self.blocks, self.bias)

    def precompute(self) -> None:
        if self.keeps_choice:
            _ = self.choice

    def blocked_chain(self, support: Support, kernels: bool) -> BlockedChain | None:
        """It reads log p(m | i) from a table; None where that would be too large.

        A training step has the states of few blocks, and always makes the table.
        """
        if kernels and self._impl != "auto":
            return None
        if not (self.keeps_choice or needs_gradient(self.operands)):
            return None
        self._blocks_of(support)  # which must be the same
        return partial(self._blocked_chain, "triton" if kernels else "pairs")

    def settings(self) -> dict[str, Any]:
        return {"rounded": self.rounded}

    def by_block(self, table: Tensor, count: int | None = None) -> Tensor:
        """Rows (S, K, …) of a table (Z, …)."""
        return table.view(self.num_blocks if count is None else count, -1, *table.shape[1:])

    def chosen(self, rows: States, blocks: States) -> Tensor:
        """log p(m | i) (R, m) of some blocks, by their places."""
        if self.keeps_choice:
            return _take_columns(take_states(self.choice, rows), blocks)
        blocks = take_states(self._present, blocks)
        vectors, bias = self.blocks.index_select(0, blocks), self.bias.index_select(0, blocks)
        logits = torch.addmm(bias, take_states(self.choosing, rows), vectors.T)
        return logits - self._choice_norm(rows).unsqueeze(1)

    def _chosen_after(self, before: Tensor, after: Tensor) -> Tensor:
        """log p(m | i) (N, K) of blocks `after` (N,) for the states i of blocks `before` (N,)."""
        if self.keeps_choice:
            return self.by_block(self.choice).transpose(1, 2)[before, after]
        after = self._present.index_select(0, after)
        choosing = self.by_block(self.choosing).index_select(0, before)  # (N, K, G)
        logits = torch.bmm(choosing, self.blocks.index_select(0, after).unsqueeze(2)).squeeze(2)
        blocks, place = torch.unique(before, return_inverse=True)
        norm = self.by_block(self._choice_norm(self._states_of(blocks)), len(blocks))
        return logits + self.bias.index_select(0, after).unsqueeze(1) - norm.index_select(0, place)

    @property
    def _impl(self) -> Impl:
        return "auto" if self.rounded and self.leaving.dtype == torch.float32 else "torch"

    @property
    def _present(self) -> Tensor:
        if self.present is not None:
            return self.present
        return torch.arange(self.num_blocks, device=self.leaving.device)

    @property
    def _at_once(self) -> int:
        return memory.limit(memory.WORKING, self.leaving.device)

    def _compute_choice(self) -> Tensor:
        return block_choice(self.choosing, self.blocks, self.bias, self.present, self._impl)

    def _choice_rows(self, states: Tensor) -> Tensor:
        """log p(m | i) (R, M) for states (R,)."""
        if self.keeps_choice:
            return self.choice.index_select(0, states)
        choosing = self.choosing.index_select(0, states)
        return block_choice(choosing, self.blocks, self.bias, impl=self._impl)

    def _choice_norm(self, rows: States) -> Tensor:
        """log Σ_m exp(choosing_i · blocks_m + bias_m) (R,); each is computed once and cached."""
        if needs_gradient(self.operands):
            choosing = take_states(self.choosing, rows)
            return row_norm(choosing, self.blocks, self.bias, impl=self._impl)
        norm = cached_object(self, "_norm", lambda: torch.full_like(self.leaving[:, 0], torch.nan))
        missing = torch.nonzero(take_states(norm, rows).isnan()).squeeze(1)
        if len(missing):
            states = torch.unique(some_of(rows, missing))
            choosing = self.choosing.detach().index_select(0, states)
            found = row_norm(choosing, self.blocks.detach(), self.bias.detach(), impl=self._impl)
            norm[states] = found
        return take_states(norm, rows)

    def _of_blocks(self, rows: States, blocks: States) -> Tensor:
        """log p(j | i) (R, m·K) for all states j of some blocks, one after the other."""
        entering = take_states(self.by_block(self.entering), blocks)
        leaving = take_states(self.leaving, rows)
        logits = leaving @ entering.reshape(-1, entering.shape[2]).T
        logits = logits.view(len(leaving), len(entering), -1)
        chosen = self.chosen(rows, blocks).unsqueeze(2)
        if needs_gradient(self.operands):
            return (logits.log_softmax(2) + chosen).flatten(1)
        return torch.log_softmax(logits, 2, out=logits).add_(chosen).flatten(1)

    def _cover(self, columns: States) -> tuple[States, States]:
        """The blocks of some states, and where the states are among those of these blocks.

        A slice must have its two ends.
        """
        size = self.block_size
        if isinstance(columns, slice):
            begin, end = columns.start // size, -(-columns.stop // size)
            within = slice(columns.start - begin * size, columns.stop - begin * size)
            return slice(begin, end), within
        blocks, place = torch.unique(columns // size, return_inverse=True)
        return blocks, place * size + columns % size

    def _block(self, block: int) -> slice:
        return slice(block * self.block_size, (block + 1) * self.block_size)

    def _states_of(self, blocks: Tensor) -> Tensor:
        """The states of blocks (m,), one block after the other: (m·K,)."""
        within = torch.arange(self.block_size, device=blocks.device)
        return (blocks.unsqueeze(1) * self.block_size + within).view(-1)

    def _has_blocks_of(self, support: Support) -> bool:
        blocks = support.partition
        return blocks is not None and blocks.num_blocks == self.num_blocks

    def _blocks_of(self, support: Support) -> Partition:
        """The partition of a support; ValueError if its blocks are not those of the transitions."""
        blocks = support.partition
        if blocks is None or not self._has_blocks_of(support):
            has = "none" if blocks is None else f"{blocks.num_blocks:,}"
            raise ValueError(
                f"two-level transitions with {self.num_blocks:,} blocks need a support with the "
                f"same blocks, but the {support.kind} one has {has}; use flat transitions or a "
                f"blocked support with {self.num_blocks:,} blocks"
            )
        return blocks

    def _blocked_chain(
        self, impl: str, windows: Windows, start: Tensor, emitted: Tensor
    ) -> tuple[Tensor, Tensor]:
        return two_level_chain(windows, start, emitted, self.vectors, impl)


def _take_columns(table: Tensor, places: States) -> Tensor:
    return table[:, places] if isinstance(places, slice) else table.index_select(1, places)
