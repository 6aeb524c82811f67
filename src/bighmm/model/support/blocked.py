"""Tokens and states are cut into blocks; a token is emitted by the states of its block."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from bighmm.base.settings import check_shares
from bighmm.model.emissions import Emissions
from bighmm.model.support.base import (
    Described,
    DescribedStates,
    States,
    Support,
    SupportRequest,
    register_support,
)
from bighmm.ops import memory
from bighmm.ops.blocked_emission import blocked_emission
from bighmm.ops.carry import states_of_blocks
from bighmm.ops.impl import Impl
from bighmm.ops.log_matmul import finite_or_zero, log_product
from bighmm.ops.partition import Partition
from bighmm.ops.present_blocks import Present
from bighmm.ops.state_dropout import draw_kept


@register_support
@dataclass(frozen=True, eq=False)
class Blocked(Support):
    """States m·K … (m+1)·K-1 emit the tokens of block m, and no others: K = Z / M."""

    kind: ClassVar[str] = "blocked"
    fixed_dropout: ClassVar[bool] = True

    blocks: Partition
    states_per_token: int

    @staticmethod
    def of(block_of: Tensor, num_states: int) -> Blocked:
        """Blocks numbered by `block_of` (V,), which share `num_states` equally.

        Raises ValueError for numbers that are no blocks, and where the states cannot be shared.
        """
        if block_of.dim() != 1 or len(block_of) == 0 or int(block_of.min()) < 0:
            raise ValueError(
                "block_of must give each token the number of its block, from 0 on, not "
                f"{block_of.reshape(-1).tolist()[:8]} of shape {tuple(block_of.shape)}"
            )
        num_blocks = int(block_of.max()) + 1
        if num_blocks > len(block_of):
            raise ValueError(
                f"{len(block_of)} tokens cannot be in {num_blocks} blocks, as every block needs one"
            )
        check_shares(num_states, num_blocks)
        return Blocked(Partition.of(block_of.long(), num_blocks), num_states // num_blocks)

    @property
    def partition(self) -> Partition:
        return self.blocks

    @property
    def num_states(self) -> int:
        return self.blocks.num_blocks * self.states_per_token

    @property
    def vocabulary_size(self) -> int:
        return len(self.blocks.block_of)

    def with_states(self, num_states: int) -> Blocked:
        check_shares(num_states, self.blocks.num_blocks)
        return Blocked(self.blocks, num_states // self.blocks.num_blocks)

    def states(self, tokens: Tensor) -> Tensor:
        within = torch.arange(self.states_per_token, device=tokens.device)
        return self._block(tokens).unsqueeze(-1) * self.states_per_token + within

    def valid_states(self, tokens: Tensor) -> Tensor:
        return self.states(tokens)

    def states_among(self, tokens: Tensor, kept: Tensor | None) -> Tensor:
        if kept is None:
            return self.states(tokens)
        return states_of_blocks(tokens, self.blocks.block_of, kept, self.states_per_token)

    def gather(self, table: Tensor, tokens: Tensor) -> Tensor:
        by_block = table.view(self.blocks.num_blocks, self.states_per_token, *table.shape[1:])
        return by_block.index_select(0, self._block(tokens))

    def group(self, token: int, device: torch.device) -> tuple[int, States]:
        block, size = int(self.blocks.block_of[token]), self.states_per_token
        return block, slice(block * size, (block + 1) * size)

    def place_of(self, tokens: Tensor, states: Tensor) -> Tensor:
        place = states - self._block(tokens) * self.states_per_token
        inside = (place >= 0) & (place < self.states_per_token) & (states >= 0)
        return torch.where(inside, place, -1)

    def emission_rows(self, emission: Tensor, states: States) -> Tensor:
        if isinstance(states, slice):
            states = torch.arange(self.num_states, device=emission.device)[states]
        rows = emission.index_select(1, states % self.states_per_token).T
        block = states // self.states_per_token
        return rows.masked_fill(self.blocks.block_of != block.unsqueeze(1), -torch.inf)

    def emitted_tokens(self, emission: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        by_block, block = self.blocks.by_block, states // self.states_per_token
        first, sizes = by_block.first.long()[block], by_block.first.diff().long()[block]
        within = torch.arange(int(sizes.max()) if len(sizes) else 0, device=states.device)
        missing = within >= sizes.unsqueeze(1)
        places = (first.unsqueeze(1) + within).masked_fill(missing, 0)
        tokens = by_block.tokens.long()[places]  # (N, W)
        cells = tokens * self.states_per_token + (states % self.states_per_token).unsqueeze(1)
        log_probs = emission.reshape(-1).index_select(0, cells.view(-1)).view(cells.shape)
        return tokens, log_probs.masked_fill(missing, -torch.inf)

    def token_log_probs(
        self, emissions: Emissions, log_states: Tensor, tokens: Tensor | None = None
    ) -> Tensor:
        if tokens is not None:
            return super().token_log_probs(emissions, log_states, tokens)
        result = log_states.new_empty(len(log_states), self.vocabulary_size)
        # Layout of the products below: blocks of similar sizes together, padded.
        layout = self.blocks.layout
        laid = emissions.probs().index_select(0, layout.tokens.clamp(min=0))
        for rows in memory.pieces(len(log_states), self.num_states, log_states.device):
            result[rows] = self._token_log_probs(emissions.table, laid, log_states[rows])
        return result

    def _token_log_probs(self, emission: Tensor, laid: Tensor, log_states: Tensor) -> Tensor:
        """(B, V), for p(x | z) laid (L, K) as the layout has the tokens."""
        size, layout, block_of = self.states_per_token, self.blocks.layout, self.blocks.block_of
        blocks = log_states.reshape(-1, self.blocks.num_blocks, size)  # (B, M, K)
        top = finite_or_zero(blocks.amax(2, keepdim=True))
        relative = (blocks - top).reshape(log_states.shape)

        def multiply(weights: Tensor) -> Tensor:
            by_block = weights.view(blocks.shape).transpose(0, 1)
            parts, place, first = [], 0, 0
            for count, width in layout.shapes:
                of_blocks = by_block.index_select(0, layout.blocks[place : place + count])
                words = laid[first : first + count * width].view(count, width, size)
                mass = torch.bmm(of_blocks, words.mT)  # (count, B, width)
                parts.append(mass.transpose(0, 1).reshape(len(weights), -1))
                place, first = place + count, first + count * width
            return torch.cat(parts, dim=1).index_select(1, layout.row_of)

        def terms(rows: Tensor, columns: Tensor) -> Tensor:
            of_block = (blocks - top)[rows, block_of[columns]]
            return of_block + emission[columns]

        def reachable() -> Tensor:
            return (blocks.amax(2) > -torch.inf).index_select(1, block_of)

        # Every block is scaled by its own maximum, so the largest entry of a row is 0 or -inf.
        found = log_product(relative, multiply, terms, reachable)
        return found + top.squeeze(2).index_select(1, block_of)

    def factored_emission(
        self, emit: Tensor, words: Tensor, bias: Tensor, impl: Impl = "torch"
    ) -> Tensor:
        return blocked_emission(self.blocks, emit, words, bias, impl)

    def draw_kept(self, rate: float, key: Tensor) -> Tensor:
        return draw_kept(self.blocks.num_blocks, self.states_per_token, rate, key)

    def draw_kept_of(self, rate: float, key: Tensor, present: Present) -> Tensor:
        number, size = self.blocks.num_blocks, self.states_per_token
        return draw_kept(number, size, rate, key, chosen=present.blocks)

    def restrict(self, kept: Tensor) -> Blocked:
        return Blocked(self.blocks, len(kept) // self.blocks.num_blocks)

    def restrict_to_blocks(self, kept: Tensor, present: Present) -> SomeBlocks:
        some = Partition(present.block_of, len(present.blocks))
        return SomeBlocks(some, len(kept) // some.num_blocks, self.blocks, present)

    def restrict_cells(self, cells: Tensor, kept: Tensor) -> Tensor:
        within = kept.view(self.blocks.num_blocks, -1) % self.states_per_token
        return cells.gather(1, within.index_select(0, self.blocks.block_of))

    def to(self, device: torch.device) -> Blocked:
        if self.blocks.block_of.device == device:
            return self
        block_of = self.blocks.block_of.to(device)
        return Blocked(Partition(block_of, self.blocks.num_blocks), self.states_per_token)

    def label_key(self) -> dict[str, Any]:
        block_of = self.blocks.block_of.cpu().numpy()
        return {
            "kind": self.kind,
            "states": self.num_states,
            "blocks": self.blocks.num_blocks,
            "partition": hashlib.sha256(block_of.astype("<i8").tobytes()).hexdigest(),
        }

    def describe(self) -> Described:
        settings = {"kind": self.kind, "states": self.num_states}
        return Described(settings, {"block_of": self.blocks.block_of})

    @classmethod
    def make(cls, request: SupportRequest) -> Blocked:
        classes = torch.from_numpy(request.word_classes().astype("int64"))
        return Blocked.of(classes, request.num_states)

    @classmethod
    def restore(
        cls, settings: dict[str, Any], tensors: dict[str, Tensor], vocabulary_size: int
    ) -> Blocked:
        states, (block_of,) = DescribedStates.read(settings, tensors, "block_of")
        return Blocked.of(block_of, states)

    def _block(self, tokens: Tensor) -> Tensor:
        return self.blocks.block_of.index_select(0, tokens.reshape(-1)).view(tokens.shape)


@dataclass(frozen=True, eq=False)
class SomeBlocks(Blocked):
    """The states of some blocks alone, renumbered in the order of these.

    A word of another block has no states here; what is said of its states is of no use.
    """

    whole: Partition
    present: Present

    def factored_emission(
        self, emit: Tensor, words: Tensor, bias: Tensor, impl: Impl = "torch"
    ) -> Tensor:
        return blocked_emission(self.whole, emit, words, bias, impl, self.present)
