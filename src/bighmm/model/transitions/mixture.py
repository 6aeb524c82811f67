"""Transitions of several HMMs side by side: no move leads from one of them to another.

Every block has the states of the first HMM, then those of the second, and so on: with sizes K_c and
their sum K, state k of block m of HMM c is m·K + K_0 + … + K_{c-1} + k. A model without blocks is
one block. The matrix is block-diagonal up to this order, and only its diagonal parts are computed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from bighmm.model.support import Blocked, Dense
from bighmm.model.support.base import States, Support
from bighmm.model.transitions.base import EVERY, BlockedChain, Transitions
from bighmm.model.transitions.product import Product, bounded, count_of
from bighmm.ops.drawing import draw_many
from bighmm.ops.windows import Windows


@dataclass(frozen=True, eq=False)
class Mixed(Transitions):
    """The transitions of `parts`, each with the states of its own in each of `blocks` blocks."""

    family: ClassVar[str] = "mixed"

    parts: tuple[Transitions, ...]
    blocks: int

    @property
    def num_states(self) -> int:
        return sum(part.num_states for part in self.parts)

    @property
    def sizes(self) -> list[int]:
        """The states of each part in a block."""
        return [part.num_states // self.blocks for part in self.parts]

    @property
    def block_size(self) -> int:
        return self.num_states // self.blocks

    @property
    def operands(self) -> tuple[Tensor, ...]:
        return tuple(x for part in self.parts for x in part.operands)

    def with_operands(self, *operands: Tensor) -> Mixed:
        given, parts = iter(operands), []
        for part in self.parts:
            parts.append(part.with_operands(*(next(given) for _ in part.operands)))
        return Mixed(tuple(parts), self.blocks)

    def log_probs(
        self, rows: States = EVERY, columns: States = EVERY, into: Tensor | None = None
    ) -> Tensor:
        shape = (self._count(rows), self._count(columns))
        found = self.operands[0].new_full(shape, -torch.inf, dtype=self.operands[0].dtype)
        for number, part in enumerate(self.parts):
            (here, i), (there, j) = self._own(number, rows), self._own(number, columns)
            if len(here) and len(there):
                found[here.unsqueeze(1), there] = part.log_probs(i, j)
        return found if into is None else into.copy_(found)

    def between(self, before: Tensor, after: Tensor) -> Tensor:
        found = self.operands[0].new_full(before.shape, -torch.inf)
        for number, part in enumerate(self.parts):
            both = self._is_of(number, before) & self._is_of(number, after)
            pairs = torch.nonzero(both).squeeze(1)
            if len(pairs):
                i, j = (self._within(number, states[pairs]) for states in (before, after))
                found = found.index_copy(0, pairs, part.between(i, j))
        return found

    def tiles(self, support: Support, before: Tensor, after: Tensor) -> Tensor:
        size = self.block_size
        found = self.operands[0].new_full((len(before), size, size), -torch.inf)
        for part, own, here in zip(self.parts, self.supports(support), self._slices(), strict=True):
            found[:, here, here] = part.tiles(own, before, after)
        return found

    def next_states(
        self, support: Support, tokens: Tensor, log_alpha: Tensor, blocks: Tensor | None = None
    ) -> Tensor:
        found = [
            part.next_states(own, tokens, log_alpha[:, here], blocks).view(len(tokens), -1, size)
            for part, own, here, size in zip(
                self.parts, self.supports(support), self._slices(), self.sizes, strict=True
            )
        ]
        return torch.cat(found, dim=2).flatten(1)

    def next_blocks(self, support: Support, tokens: Tensor, log_alpha: Tensor) -> Tensor | None:
        found = []
        for part, own, here in zip(self.parts, self.supports(support), self._slices(), strict=True):
            of_part = part.next_blocks(own, tokens, log_alpha[:, here])
            if of_part is None:
                return None
            found.append(of_part)
        return torch.stack(found).logsumexp(0)

    @torch.no_grad()
    def draw(
        self, states: Tensor, fresh: Tensor, start: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        found = states.clone()
        for number, part in enumerate(self.parts):
            places = torch.nonzero(self._is_of(number, states) & ~fresh).squeeze(1)
            if len(places):
                before, goes_on = self._within(number, states[places]), fresh[places]
                drawn = part.draw(before, goes_on, part.operands[0].new_zeros(1), generator)
                found[places] = self._whole(number, drawn)
        anew = torch.nonzero(fresh).squeeze(1)
        return found.index_copy(0, anew, draw_many(start, len(anew), generator))

    def product(self, before: States = EVERY, after: States = EVERY) -> Product:
        return MixedProduct(self, before, after)

    def precompute(self) -> None:
        for part in self.parts:
            part.precompute()

    def blocked_chain(self, support: Support, kernels: bool) -> BlockedChain | None:
        """The chains of the parts, each on its own; None if one has none.

        Where a text starts anew within a window the parts meet, and tiles are needed.
        """
        found = [
            part.blocked_chain(own, kernels)
            for part, own in zip(self.parts, self.supports(support), strict=True)
        ]
        chains = [chain for chain in found if chain is not None]
        return partial(self._chain, chains) if len(chains) == len(found) else None

    def supports(self, support: Support) -> list[Support]:
        """The support of every part; ValueError if that of all has neither blocks nor is dense."""
        if support.partition is not None:
            return [Blocked(support.partition, size) for size in self.sizes]
        if not support.is_dense:
            raise ValueError(f"HMMs of a {support.kind} support cannot be mixed")
        return [Dense(size, support.vocabulary_size) for size in self.sizes]

    def joined(self, tables: list[Tensor]) -> Tensor:
        """Numbers of the states of all parts (Z,), from those of each."""
        by_block = [table.view(self.blocks, -1) for table in tables]
        return torch.cat(by_block, dim=1).view(-1)

    def _chain(
        self, chains: list[BlockedChain], windows: Windows, start: Tensor, emitted: Tensor
    ) -> tuple[Tensor, Tensor] | None:
        if bool(windows.fresh[:, 1:].any()):
            return None
        sums, ends = [], []
        by_block = start.view(self.blocks, -1)
        # Where a text starts anew, what was carried counts by its sum alone.
        starts = (windows.carried_fresh & (windows.lengths > 0)).unsqueeze(1)
        total = windows.carried.logsumexp(1, keepdim=True)
        for chain, here in zip(chains, self._slices(), strict=True):
            anew = total - math.log(here.stop - here.start)
            carried = torch.where(starts, anew, windows.carried[:, here])
            given = windows._replace(carried=carried)
            own_start = by_block[:, here].reshape(-1)
            found = chain(given, own_start, emitted[:, :, here].contiguous())
            assert found is not None, "chains of a part do all windows"
            log_sum, log_alpha = found
            sums.append(log_sum)
            ends.append(
                (log_alpha.log_softmax(1) + log_sum.detach().unsqueeze(1)).nan_to_num(
                    nan=-torch.inf, neginf=-torch.inf
                )
            )
        return torch.stack(sums).logsumexp(0), torch.cat(ends, dim=1)

    def _slices(self) -> list[slice]:
        """Where the states of each part stand in a block."""
        sums = [0]
        for size in self.sizes:
            sums.append(sums[-1] + size)
        return [slice(first, last) for first, last in pairwise(sums)]

    def _count(self, states: States) -> int:
        return count_of(bounded(states, self.num_states))

    def _is_of(self, number: int, states: Tensor) -> Tensor:
        here, within = self._slices()[number], states % self.block_size
        return (within >= here.start) & (within < here.stop)

    def _within(self, number: int, states: Tensor) -> Tensor:
        """What the part calls these states of its own."""
        block, within = states // self.block_size, states % self.block_size
        return block * self.sizes[number] + within - self._slices()[number].start

    def _whole(self, number: int, states: Tensor) -> Tensor:
        """The inverse of `_within`."""
        size = self.sizes[number]
        within = states % size + self._slices()[number].start
        return states // size * self.block_size + within

    def _own(self, number: int, states: States) -> tuple[Tensor, States]:
        """Places among `states` of those of a part, and what it calls them: a slice if it can."""
        device, states = self.operands[0].device, bounded(states, self.num_states)
        every = states
        if isinstance(every, slice):
            every = torch.arange(every.start, every.stop, device=device)
        places = torch.nonzero(self._is_of(number, every)).squeeze(1)
        if isinstance(states, slice):
            first, last = (divmod(end, self.block_size) for end in (states.start, states.stop))
            if first[1] == last[1] == 0:  # whole blocks
                size = self.sizes[number]
                return places, slice(first[0] * size, last[0] * size)
        return places, self._within(number, every[places])


class MixedProduct:
    """Products with a part of a block-diagonal matrix."""

    def __init__(self, transitions: Mixed, before: States, after: States) -> None:
        self.height, self.width = transitions._count(before), transitions._count(after)
        self.parts: list[tuple[Tensor, Tensor, Product]] = []
        for number, part in enumerate(transitions.parts):
            (here, rows), (there, columns) = (
                transitions._own(number, states) for states in (before, after)
            )
            if len(here) and len(there):
                every = [_whole(states, part.num_states) for states in (rows, columns)]
                self.parts.append((here, there, part.product(*every)))

    @property
    def size(self) -> int:
        return sum(part.size for _, _, part in self.parts)

    def ahead(self, log_alpha: Tensor) -> Tensor:
        """log Σ_i exp(log_alpha_i) p(j | i): (B, R) -> (B, C)."""
        result = log_alpha.new_full((len(log_alpha), self.width), -torch.inf)
        for here, there, part in self.parts:
            result[:, there] = part.ahead(log_alpha[:, here])
        return result

    def back(self, log_beta: Tensor) -> Tensor:
        """log Σ_j p(j | i) exp(log_beta_j): (B, C) -> (B, R)."""
        result = log_beta.new_full((len(log_beta), self.height), -torch.inf)
        for here, there, part in self.parts:
            result[:, here] = part.back(log_beta[:, there])
        return result


def _whole(states: States, count: int) -> States:
    """`EVERY` where a slice has all of `count` states, so that what is kept for it is found."""
    return EVERY if isinstance(states, slice) and states == slice(0, count) else states
