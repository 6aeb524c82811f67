"""Which states may emit which token.

Three kinds: every state emits every token (`Dense`), tokens and states are cut into blocks and a
token is emitted by the states of its block (`Blocked`), or every token has its own list of states
(`Free`). Inference is written against what they share. Shape letters are those of `hmm.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from bighmm.base import randomness
from bighmm.base.caching import outside_inference_mode
from bighmm.ops import Impl, use_triton


class Support(Protocol):
    """The relation 'state z may emit token x', with K states for every token."""

    @property
    def num_states(self) -> int: ...
    @property
    def alive(self) -> int:
        """K, the number of states that can be alive once a token is known."""
        ...

    @property
    def vocabulary_size(self) -> int: ...

    def states(self, tokens: Tensor) -> Tensor:
        """Ids (..., K) of the states that may emit `tokens` (...); -1 fills a shorter list."""
        ...

    def gather(self, table: Tensor, tokens: Tensor) -> Tensor:
        """Rows of `table` (Z, ...) for the states of `tokens` (N,): (N, K, ...).

        Where `states` is -1 the row is that of some other state: the emission there is zero.
        """
        ...

    def emission_rows(self, emission: Tensor, states: Tensor) -> Tensor:
        """log p(x | z) (N, V) over the whole vocabulary for `states` (N,), from emission (V, K)."""
        ...

    def draw_kept(self, rate: float, key: Tensor) -> Tensor:
        """Ids (Z',), sorted, of the states that survive state dropout at `rate`.

        They are a function of `key` (see `randomness`) and are where it is.
        """
        ...

    def restrict(self, kept: Tensor) -> Support:
        """The same relation over the states `kept` alone, renumbered 0 … Z'-1."""
        ...

    def to(self, device: torch.device) -> Support: ...


@dataclass(frozen=True)
class Dense:
    """Every state may emit every token: K = Z."""

    num_states: int
    vocabulary_size: int

    @property
    def alive(self) -> int:
        return self.num_states

    def states(self, tokens: Tensor) -> Tensor:
        every = torch.arange(self.num_states, device=tokens.device)
        return every.expand(*tokens.shape, self.num_states)

    def gather(self, table: Tensor, tokens: Tensor) -> Tensor:
        return table.unsqueeze(0).expand(len(tokens), *table.shape)

    def emission_rows(self, emission: Tensor, states: Tensor) -> Tensor:
        return emission.index_select(1, states).T

    def draw_kept(self, rate: float, key: Tensor) -> Tensor:
        return _draw_kept(1, self.num_states, rate, key)

    def restrict(self, kept: Tensor) -> Dense:
        return Dense(len(kept), self.vocabulary_size)

    def to(self, device: torch.device) -> Dense:
        return self


@dataclass(frozen=True, eq=False)
class Partition:
    """A partition of the vocabulary into M blocks, every block with at least one token."""

    block_of: Tensor  # (V,) long
    num_blocks: int

    def __post_init__(self) -> None:
        sizes = torch.bincount(self.block_of, minlength=self.num_blocks)
        if len(sizes) > self.num_blocks or int(sizes.min()) == 0:
            raise ValueError(
                f"a partition into {self.num_blocks} blocks must give every block a token, "
                f"but the block sizes are {sizes.tolist()[:8]}…"
            )

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
        """The tokens of all blocks laid out for few padded products."""
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
        tokens = torch.cat(laid)
        filled = tokens >= 0
        row_of = torch.empty_like(self.block_of)
        row_of[tokens[filled]] = torch.nonzero(filled).squeeze(1)
        blocks = torch.tensor(order, device=self.block_of.device)
        return Layout(tuple(shapes), blocks, tokens, row_of)


@dataclass(frozen=True, eq=False)
class ByBlock:
    """The tokens of block m are tokens[first[m] : first[m + 1]]."""

    PIECE: ClassVar[int] = 64  # tokens of a block that are worked on together

    tokens: Tensor  # (V,) int32
    first: Tensor  # (M + 1,) int32

    @cached_property
    @outside_inference_mode()
    def pieces(self) -> Tensor:
        """(block, first place in `tokens`) of pieces of at most PIECE tokens: (N, 2) int32."""
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
    row_of: Tensor  # (V,) where each token stands in `tokens`


@dataclass(frozen=True, eq=False)
class Blocked:
    """States m·k … (m+1)·k-1 emit the tokens of block m, and no others: K = k = Z / M."""

    partition: Partition
    alive: int

    @staticmethod
    def of(block_of: Tensor, num_states: int) -> Blocked:
        """Blocks numbered by `block_of` (V,), which share `num_states` equally."""
        if block_of.dim() != 1 or len(block_of) == 0 or int(block_of.min()) < 0:
            raise ValueError(
                "block_of must give each token the number of its block, from 0 on, not "
                f"{block_of.reshape(-1).tolist()[:8]} of shape {tuple(block_of.shape)}"
            )
        num_blocks = int(block_of.max()) + 1
        if num_states < 1 or num_states % num_blocks:
            raise ValueError(
                f"{num_states} states cannot be shared equally by {num_blocks} blocks; "
                f"use a multiple of {num_blocks}"
            )
        return Blocked(Partition(block_of.long(), num_blocks), num_states // num_blocks)

    @property
    def num_states(self) -> int:
        return self.partition.num_blocks * self.alive

    @property
    def vocabulary_size(self) -> int:
        return len(self.partition.block_of)

    def blocks(self, tokens: Tensor) -> Tensor:
        flat = self.partition.block_of.index_select(0, tokens.reshape(-1))
        return flat.view(tokens.shape)

    def states(self, tokens: Tensor) -> Tensor:
        within = torch.arange(self.alive, device=tokens.device)
        return self.blocks(tokens).unsqueeze(-1) * self.alive + within

    def gather(self, table: Tensor, tokens: Tensor) -> Tensor:
        by_block = table.view(self.partition.num_blocks, self.alive, *table.shape[1:])
        return by_block.index_select(0, self.blocks(tokens))

    def emission_rows(self, emission: Tensor, states: Tensor) -> Tensor:
        rows = emission.index_select(1, states % self.alive).T
        others = self.partition.block_of.unsqueeze(0) != (states // self.alive).unsqueeze(1)
        return rows.masked_fill(others, -torch.inf)

    def draw_kept(self, rate: float, key: Tensor) -> Tensor:
        return _draw_kept(self.partition.num_blocks, self.alive, rate, key)

    def restrict(self, kept: Tensor) -> Blocked:
        return Blocked(self.partition, len(kept) // self.partition.num_blocks)

    def to(self, device: torch.device) -> Blocked:
        if self.partition.block_of.device == device:
            return self
        block_of = self.partition.block_of.to(device)
        return Blocked(Partition(block_of, self.partition.num_blocks), self.alive)


@dataclass(frozen=True, eq=False)
class Free:
    """Every token has its own K states (the papers' 'uniform' constraint)."""

    table: Tensor  # (V, K) long, -1 where a token has fewer
    num_states: int

    @staticmethod
    def random(vocabulary_size: int, num_states: int, alive: int, seed: int) -> Free:
        """K states for every token, uniformly without replacement.

        A state that no token drew would have no emission distribution; it takes the place of a
        state that others share.
        """
        if not 1 <= alive <= num_states or vocabulary_size * alive < num_states:
            raise ValueError(
                f"{alive} states per token cannot cover {num_states} states with "
                f"{vocabulary_size} tokens; use between "
                f"{-(-num_states // max(vocabulary_size, 1))} and {num_states}"
            )
        generator = torch.Generator().manual_seed(seed)
        rows = [
            torch.randperm(num_states, generator=generator)[:alive] for _ in range(vocabulary_size)
        ]
        table = torch.stack(rows)
        counts = torch.bincount(table.view(-1), minlength=num_states)
        flat = table.view(-1)
        place = 0
        for state in torch.nonzero(counts == 0).squeeze(1).tolist():
            while counts[flat[place]] < 2:
                place += 1
            counts[flat[place]] -= 1
            flat[place] = state
            place += 1
        return Free(table, num_states)

    @property
    def alive(self) -> int:
        return self.table.shape[1]

    @property
    def vocabulary_size(self) -> int:
        return len(self.table)

    @cached_property
    @outside_inference_mode()
    def cells(self) -> Tensor:
        """(Z, W) where each state stands in the table laid flat, padded with -1."""
        flat = self.table.reshape(-1)
        order = flat.argsort(stable=True)[int((flat < 0).sum()) :]
        states = flat[order]
        counts = torch.bincount(states, minlength=self.num_states)
        first = counts.cumsum(0) - counts
        within = torch.arange(len(order), device=flat.device) - first[states]
        cells = torch.full((self.num_states, int(counts.max())), -1, device=flat.device)
        cells[states, within] = order
        return cells

    def states(self, tokens: Tensor) -> Tensor:
        return self.table.index_select(0, tokens.reshape(-1)).view(*tokens.shape, self.alive)

    def gather(self, table: Tensor, tokens: Tensor) -> Tensor:
        ids = some_states(self, tokens)
        return table.index_select(0, ids.view(-1)).view(*ids.shape, *table.shape[1:])

    def emission_rows(self, emission: Tensor, states: Tensor) -> Tensor:
        cells = self.cells.index_select(0, states)
        missing = cells < 0
        values = emission.reshape(-1).index_select(0, cells.clamp(min=0).view(-1))
        values = values.view(cells.shape).masked_fill(missing, -torch.inf)
        tokens = (cells // self.alive).masked_fill(missing, self.vocabulary_size)
        rows = emission.new_full((len(states), self.vocabulary_size + 1), -torch.inf)
        return rows.scatter(1, tokens, values)[:, :-1]

    def draw_kept(self, rate: float, key: Tensor) -> Tensor:
        """Every token keeps at least one of its states, so a few more may survive."""
        table = self.table.to(key.device)
        nowhere = self.num_states
        kept = torch.zeros(self.num_states + 1, dtype=torch.bool, device=key.device)
        kept.index_fill_(0, _draw_kept(1, self.num_states, rate, key), True)
        lost = ~kept[table].any(1)  # -1 finds the last entry, which is no state
        first = table.amax(1)
        kept.index_fill_(0, torch.where(lost & (first >= 0), first, nowhere), True)
        return torch.nonzero(kept[:nowhere]).squeeze(1)

    def restrict(self, kept: Tensor) -> Free:
        renumbered = torch.full((self.num_states + 1,), -1, device=kept.device)
        renumbered[kept] = torch.arange(len(kept), device=kept.device)
        part = Free(renumbered[self.table], len(kept))  # -1 finds the last entry, which is -1
        part.__dict__["cells"] = self.cells.index_select(0, kept)  # they stand where they stood
        return part

    def to(self, device: torch.device) -> Free:
        if self.table.device == device:
            return self
        return Free(self.table.to(device), self.num_states)


def some_states(support: Support, tokens: Tensor) -> Tensor:
    """`states`, but where there is none some state all the same.

    It differs from place to place: a gradient that adds to one row from everywhere is slow.
    """
    ids = support.states(tokens)
    others = torch.arange(support.alive, device=ids.device) % support.num_states
    return torch.where(ids >= 0, ids, others)


def _draw_kept(groups: int, size: int, rate: float, key: Tensor, impl: Impl = "auto") -> Tensor:
    """In each of `groups` groups of `size` states the same number is kept, at least one."""
    if not 0 <= rate < 1:
        raise ValueError(f"the rate of state dropout must be at least 0 and below 1, not {rate}")
    keep = max(1, round((1 - rate) * size))
    if use_triton(key, impl) and size <= 2048:
        from bighmm.ops import dropout_mask_triton

        return dropout_mask_triton.draw(groups, size, keep, key)
    order = randomness.noise(key, groups * size).view(groups, size)
    within = order.argsort(dim=1)[:, :keep].sort(dim=1).values
    first = torch.arange(groups, device=within.device) * size
    return (first.unsqueeze(1) + within).view(-1)
