"""A partition of the vocabulary into blocks, and two layouts of it for products per block."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from bighmm.base.caching import outside_inference_mode


@dataclass(frozen=True, eq=False)
class Partition:
    """A partition of the vocabulary into M blocks, every block with at least one token."""

    block_of: Tensor  # (V,) long
    num_blocks: int

    @staticmethod
    def of(block_of: Tensor, num_blocks: int) -> Partition:
        """Raises ValueError where a block has no token."""
        sizes = torch.bincount(block_of, minlength=num_blocks)
        if len(sizes) > num_blocks or int(sizes.min()) == 0:
            raise ValueError(
                f"a partition into {num_blocks} blocks must give every block a token, "
                f"but the block sizes are {sizes.tolist()[:8]}…"
            )
        return Partition(block_of, num_blocks)

    @cached_property
    @outside_inference_mode()
    def by_block(self) -> ByBlock:
        """The tokens of all blocks one after the other, without padding."""
        sizes = torch.bincount(self.block_of, minlength=self.num_blocks)
        tokens = torch.argsort(self.block_of, stable=True)
        first = torch.nn.functional.pad(sizes.cumsum(0), (1, 0))
        return ByBlock(tokens.int(), first.int())

    @cached_property
    @outside_inference_mode()
    def layout(self) -> Layout:
        """The tokens of all blocks, padded so that few batched products serve them."""
        sizes = torch.bincount(self.block_of, minlength=self.num_blocks).tolist()
        tokens_of = torch.argsort(self.block_of, stable=True).split(sizes)
        order = sorted(range(self.num_blocks), key=lambda m: sizes[m])
        shapes: list[tuple[int, int]] = []
        laid: list[Tensor] = []
        first = 0
        while first < self.num_blocks:
            widest = max(8, 3 * sizes[order[first]] // 2)
            last = first
            while last < self.num_blocks and sizes[order[last]] <= widest:
                last += 1
            chosen = [tokens_of[m] for m in order[first:last]]
            padded = torch.nn.utils.rnn.pad_sequence(chosen, batch_first=True, padding_value=-1)
            shapes.append((last - first, padded.shape[1]))
            laid.append(padded.reshape(-1))
            first = last
        blocks = torch.tensor(order, device=self.block_of.device)
        return Layout.of(shapes, blocks, laid, len(self.block_of))


@dataclass(frozen=True, eq=False)
class ByBlock:
    """The tokens of block m are tokens[first[m] : first[m + 1]]."""

    PIECE: ClassVar[int] = 64  # tokens of a block that are worked on together

    tokens: Tensor  # (V,) int32
    first: Tensor  # (M + 1,) int32

    @cached_property
    @outside_inference_mode()
    def pieces(self) -> Tensor:
        """(block, offset into `tokens`) of pieces of at most PIECE tokens: (N, 2) int32."""
        bounds = self.first.tolist()
        found = [
            (block, place)
            for block in range(len(bounds) - 1)
            for place in range(bounds[block], bounds[block + 1], self.PIECE)
        ]
        return torch.tensor(found, dtype=torch.int32, device=self.tokens.device)

    @cached_property
    @outside_inference_mode()
    def pieces_of_block(self) -> Tensor:
        """Those of block m are pieces[here[m] : here[m + 1]]: (M + 1,) int32."""
        sizes = self.first.diff()
        counts = (sizes + self.PIECE - 1) // self.PIECE
        return torch.nn.functional.pad(counts.cumsum(0), (1, 0)).int()


@dataclass(frozen=True, eq=False)
class Layout:
    """Blocks sorted by size and grouped, each group padded to its widest block.

    A group's widest block has at most 1.5 times (or 8) the tokens of its smallest, so that little
    of the padded work is wasted.
    """

    shapes: tuple[tuple[int, int], ...]  # (blocks, width) of every group
    blocks: Tensor  # (M,) block ids in the order of the groups
    tokens: Tensor  # (Σ blocks · width,) token ids laid end to end, -1 as padding
    row_of: Tensor  # (V,) where each token stands in `tokens`, 0 if it does not

    @staticmethod
    def of(
        shapes: list[tuple[int, int]], blocks: Tensor, laid: list[Tensor], vocabulary_size: int
    ) -> Layout:
        """From the tokens of every group."""
        tokens = torch.cat(laid)
        filled = torch.nonzero(tokens >= 0).squeeze(1)
        row_of = torch.zeros(vocabulary_size, dtype=torch.long, device=tokens.device)
        row_of.index_copy_(0, tokens.index_select(0, filled), filled)
        return Layout(tuple(shapes), blocks, tokens, row_of)

    def restrict(self, place_of: Tensor) -> Layout:
        """That of some blocks, which are called by their places: place_of (M,), -1 for others."""
        shapes, laid = [], []
        places = place_of.index_select(0, self.blocks)
        groups = self.tokens.split([blocks * width for blocks, width in self.shapes])
        of_groups = places.split([blocks for blocks, _ in self.shapes])
        for (blocks, width), tokens, of_group in zip(self.shapes, groups, of_groups, strict=True):
            here = torch.nonzero(of_group >= 0).squeeze(1)
            if len(here):
                shapes.append((len(here), width))
                laid.append(tokens.view(blocks, width).index_select(0, here).view(-1))
        return Layout.of(shapes, places[places >= 0], laid, len(self.row_of))
