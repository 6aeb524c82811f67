"""Products with a part of the transition matrix: from some states to some others.

A known word leaves K states alive and a gap leaves all Z, so that between the two lies a K × Z part
of the matrix. It is made in tiles along its longer side, small enough for a processor's cache, and
kept where it is used again. On a CPU its memory is used again for later parts, since to get new
memory takes almost as long as the products that fill it (docs/log.md). Products are in probability
space, and sums that are so small that mass may have been lost are done again in log space, one by
one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import torch
from torch import Tensor

from bighmm.base.caching import outside_inference_mode
from bighmm.infer.inputs import CHUNK_ELEMENTS
from bighmm.infer.numerics import SMALLEST_SUM, finite_or_zero
from bighmm.model.transitions import Transitions
from bighmm.ops import at_once

TILE_ELEMENTS = 2**20  # 4 MiB in float32
POOL_ELEMENTS = 2**25  # 128 MiB


class _Pool:
    """Memory of parts that are no longer used, for parts of the same size."""

    def __init__(self) -> None:
        self.free: list[Tensor] = []
        self.lock = threading.RLock()  # a part may be given back while another one is taken

    def take(self, size: int, like: Tensor) -> Tensor:
        """Space for `size` numbers of the type and on the device of `like`."""
        if like.device.type == "cpu":  # elsewhere torch itself keeps memory
            with self.lock:
                for place, memory in enumerate(self.free):
                    if memory.numel() == size and memory.dtype == like.dtype:
                        return self.free.pop(place)
        with outside_inference_mode():
            return like.new_empty(size)

    def give(self, memory: Tensor | None) -> None:
        if memory is not None and memory.device.type == "cpu" and memory.numel() <= POOL_ELEMENTS:
            with self.lock:
                self.free.append(memory)
                while sum(m.numel() for m in self.free) > POOL_ELEMENTS:
                    self.free.pop(0)


POOL = _Pool()


class Part:
    """p(j | i) for i in `before` (R,) and j in `after` (C,).

    States that follow each other are better given as a slice, which copies nothing.
    """

    def __init__(
        self, transitions: Transitions, before: Tensor | slice, after: Tensor | slice
    ) -> None:
        self.transitions = transitions
        self.before, self.after = before, after
        self.minus_norm = -transitions.norm[before].unsqueeze(1)
        self.height, self.width = len(self.minus_norm), len(transitions.norm[after])
        elements = at_once(TILE_ELEMENTS, self.minus_norm.device)
        self.tiles = _tiles(self.height, self.width, elements)
        self.kept: list[Tensor] = []
        self.memory: Tensor | None = None
        self.pool = POOL

    def __del__(self) -> None:
        self.pool.give(self.memory)

    @property
    def size(self) -> int:
        return self.height * self.width

    def ahead(self, log_alpha: Tensor) -> Tensor:
        """log Σ_i exp(log_alpha_i) p(j | i): (B, R) -> (B, C)."""
        top = finite_or_zero(log_alpha.amax(1, keepdim=True))
        weights = (log_alpha - top).exp()
        mass = weights.new_zeros(len(weights), self.width)
        for rows, columns, probs in self._each():
            mass[:, columns] += weights[:, rows] @ probs
        result = mass.log() + top
        for b, low in _too_small(mass, log_alpha):
            for some in low.split(max(1, CHUNK_ELEMENTS // self.height)):
                moves = self.transitions.logits(self.before, _of(self.after, some))
                weighted = moves + self.minus_norm + log_alpha[b].unsqueeze(1)
                result[b, some] = weighted.logsumexp(0)
        return result

    def back(self, log_beta: Tensor) -> Tensor:
        """log Σ_j p(j | i) exp(log_beta_j): (B, C) -> (B, R)."""
        top = finite_or_zero(log_beta.amax(1, keepdim=True))
        weights = (log_beta - top).exp()
        mass = weights.new_zeros(len(weights), self.height)
        for rows, columns, probs in self._each():
            mass[:, rows] += weights[:, columns] @ probs.T
        result = mass.log() + top
        for b, low in _too_small(mass, log_beta):
            for some in low.split(max(1, CHUNK_ELEMENTS // self.width)):
                moves = self.transitions.logits(_of(self.before, some), self.after)
                result[b, some] = (moves + self.minus_norm[some] + log_beta[b]).logsumexp(1)
        return result

    def _each(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """Tiles of the part in probability space, with where they are."""
        if self.kept:
            yield from ((*place, probs) for place, probs in zip(self.tiles, self.kept, strict=True))
            return
        memory = self.pool.take(self.size, self.minus_norm)
        made, first = [], 0
        for rows, columns in self.tiles:
            shape = rows.stop - rows.start, columns.stop - columns.start
            tile = memory[first : first + shape[0] * shape[1]].view(shape)
            first += tile.numel()
            some = _of(self.before, rows), _of(self.after, columns)
            self.transitions.log_probs(*some, into=tile).exp_()
            made.append(tile)
            yield rows, columns, tile
        self.kept, self.memory = made, memory


def _tiles(height: int, width: int, elements: int) -> list[tuple[slice, slice]]:
    if height > width:
        step = max(1, elements // width)
        cuts = [slice(i, min(i + step, height)) for i in range(0, height, step)]
        return [(rows, slice(0, width)) for rows in cuts]
    step = max(1, elements // height)
    cuts = [slice(j, min(j + step, width)) for j in range(0, width, step)]
    return [(slice(0, height), columns) for columns in cuts]


def _of(states: Tensor | slice, some: Tensor | slice) -> Tensor | slice:
    """Some of the states, by their places among them."""
    if isinstance(states, Tensor):
        return states[some]
    if isinstance(some, Tensor):
        return some + states.start
    return slice(states.start + some.start, states.start + some.stop)


def _too_small(mass: Tensor, log_vector: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Rows of the batch, and which of their sums may have lost something."""
    low = mass < SMALLEST_SUM[mass.dtype]
    if bool(low.any()):
        low &= (log_vector.amax(1) > -torch.inf).unsqueeze(1)
        for b in torch.nonzero(low.any(1)).squeeze(1).tolist():
            yield b, torch.nonzero(low[b]).squeeze(1)
