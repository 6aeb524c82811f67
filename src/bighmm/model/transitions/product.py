"""Products of log-space vectors with a part of the transition matrix.

A known word leaves K states alive and a gap leaves all Z, so that between the two lies a K × Z part
of the matrix. It is computed in tiles along its longer side and kept while it is small. On a CPU
the memory of parts is used again for later ones, since to get new memory takes almost as long as
the products that fill it (docs/log.md).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from bighmm.base.caching import outside_inference_mode
from bighmm.base.interrupting import check
from bighmm.model.support.base import States
from bighmm.ops import memory
from bighmm.ops.log_matmul import log_product

LOWEST = 256  # rows of a tile of a large matrix at least: products with fewer are slow


class Product(Protocol):
    """Products with p(j | i), for R states i and C states j."""

    @property
    def size(self) -> int:
        """How many numbers it keeps in memory."""
        ...

    def ahead(self, log_alpha: Tensor) -> Tensor:
        """log Σ_i exp(log_alpha_i) p(j | i): (B, R) -> (B, C)."""
        ...

    def back(self, log_beta: Tensor) -> Tensor:
        """log Σ_j p(j | i) exp(log_beta_j): (B, C) -> (B, R)."""
        ...


class Matrix(Protocol):
    """What a `TiledProduct` needs of transitions."""

    @property
    def num_states(self) -> int: ...
    @property
    def operands(self) -> tuple[Tensor, ...]: ...
    @property
    def grain(self) -> int: ...
    def log_probs(self, rows: States, columns: States, into: Tensor | None = None) -> Tensor: ...


class TiledProduct:
    """Products in probability space with tiles of the matrix, repaired in log space.

    Tiles have about `elements` numbers. They are kept if all of them together are at most
    `memory.CACHED`, and computed at every call otherwise.
    """

    def __init__(self, transitions: Matrix, before: States, after: States, elements: int) -> None:
        self.transitions = transitions
        self.before, self.after = (bounded(s, transitions.num_states) for s in (before, after))
        self.height, self.width = count_of(self.before), count_of(self.after)
        like = transitions.operands[0]
        self.like = like.detach()
        most, first = memory.limit(elements, like.device), _first(self.after)
        self.tiles = _cut(self.height, self.width, most, transitions.grain, first)
        self.kept: list[Tensor] = []
        self.memory: Tensor | None = None
        self.pool = _POOL

    def __del__(self) -> None:
        pool = getattr(self, "pool", None)  # there is none where __init__ has failed
        if pool is not None:
            pool.give(self.memory)

    @property
    def size(self) -> int:
        return self.height * self.width

    @torch.no_grad()
    def ahead(self, log_alpha: Tensor) -> Tensor:
        """log Σ_i exp(log_alpha_i) p(j | i): (B, R) -> (B, C)."""

        def multiply(weights: Tensor) -> Tensor:
            mass = weights.new_zeros(len(weights), self.width)
            alive = (weights > 0).any(0)
            for rows, columns, probs in self._each(lambda rows, _: bool(alive[rows].any())):
                mass[:, columns].addmm_(weights[:, rows], probs)
            return mass

        def terms(rows: Tensor, columns: Tensor) -> Tensor:
            moves = self.transitions.log_probs(self.before, some_of(self.after, columns))
            return moves.T + log_alpha[rows]

        return log_product(
            log_alpha, multiply, terms, lambda: self._reachable(log_alpha, ahead=True)
        )

    @torch.no_grad()
    def back(self, log_beta: Tensor) -> Tensor:
        """log Σ_j p(j | i) exp(log_beta_j): (B, C) -> (B, R)."""

        def multiply(weights: Tensor) -> Tensor:
            mass = weights.new_zeros(len(weights), self.height)
            alive = (weights > 0).any(0)
            for rows, columns, probs in self._each(lambda _, columns: bool(alive[columns].any())):
                mass[:, rows].addmm_(weights[:, columns], probs.T)
            return mass

        def terms(rows: Tensor, columns: Tensor) -> Tensor:
            moves = self.transitions.log_probs(some_of(self.before, columns), self.after)
            return moves + log_beta[rows]

        return log_product(
            log_beta, multiply, terms, lambda: self._reachable(log_beta, ahead=False)
        )

    def _each(self, used: Callable[[slice, slice], bool]) -> Iterator[tuple[slice, slice, Tensor]]:
        """Tiles of the part in probability space, with where they are.

        Those that are not `used` are left out, unless all are kept.
        """
        if self.kept:
            yield from ((*place, probs) for place, probs in zip(self.tiles, self.kept, strict=True))
            return
        keeps = self.size <= memory.CACHED
        space = self.pool.take(self.size, self.like) if keeps else None
        made, first = [], 0
        for rows, columns in self.tiles:
            check()
            if not keeps and not used(rows, columns):
                continue
            tile = None
            if space is not None:
                shape = rows.stop - rows.start, columns.stop - columns.start
                tile = space[first : first + shape[0] * shape[1]].view(shape)
                first += tile.numel()
            some = some_of(self.before, rows), some_of(self.after, columns)
            tile = self.transitions.log_probs(*some, into=tile).exp_()
            if keeps:
                made.append(tile)
            yield rows, columns, tile
        if keeps:
            self.kept, self.memory = made, space

    def _reachable(self, log_vector: Tensor, ahead: bool) -> Tensor:
        """Which sums (B, C), or (B, R) going back, have a term above -inf."""
        alive = (log_vector > -torch.inf).to(log_vector.dtype)
        found = alive.new_zeros(len(alive), self.width if ahead else self.height)
        for rows, columns in self.tiles:
            some = some_of(self.before, rows), some_of(self.after, columns)
            possible = (self.transitions.log_probs(*some) > -torch.inf).to(alive.dtype)
            if ahead:
                found[:, columns].addmm_(alive[:, rows], possible)
            else:
                found[:, rows].addmm_(alive[:, columns], possible.T)
        return found > 0


class _Pool:
    """Memory of parts that are no longer used, for parts of the same size."""

    def __init__(self) -> None:
        self.free: list[Tensor] = []
        self.lock = threading.RLock()  # a part may be given back while another one is taken

    def take(self, size: int, like: Tensor) -> Tensor:
        """Space for `size` numbers of the type and on the device of `like`."""
        if like.device.type == "cpu":  # elsewhere torch itself keeps memory
            with self.lock:
                for place, space in enumerate(self.free):
                    if space.numel() == size and space.dtype == like.dtype:
                        return self.free.pop(place)
        with outside_inference_mode():
            return like.new_empty(size)

    def give(self, space: Tensor | None) -> None:
        """Take back what is no longer used; the oldest is let go where there is too much."""
        if space is not None and space.device.type == "cpu" and space.numel() <= memory.POOLED:
            with self.lock:
                self.free.append(space)
                while sum(m.numel() for m in self.free) > memory.POOLED:
                    self.free.pop(0)


_POOL = _Pool()


def bounded(states: States, num_states: int) -> States:
    """A slice with its two ends, or ids as they are."""
    return slice(*states.indices(num_states)[:2]) if isinstance(states, slice) else states


def count_of(states: States) -> int:
    return states.stop - states.start if isinstance(states, slice) else len(states)


def _first(states: States) -> int:
    return states.start if isinstance(states, slice) else 0


def _cut(
    height: int, width: int, elements: int, grain: int = 1, first: int = 0
) -> list[tuple[slice, slice]]:
    """Tiles of at most about so many elements, cut along the longer side, or both if both are long.

    Columns are the states from `first` on, and are cut at multiples of `grain` where they are cut.
    """
    if height >= width:
        narrow = max(1, elements // LOWEST)
        columns = [slice(0, width)] if width <= narrow else _steps(width, narrow, grain, first)
        step = max(1, elements // max(1, min(width, narrow)))
        rows = [slice(i, min(i + step, height)) for i in range(0, height, step)]
    else:
        rows = [slice(0, height)]
        columns = _steps(width, max(1, elements // max(1, height)), grain, first)
    return [(r, c) for r in rows for c in columns]


def _steps(width: int, step: int, grain: int, first: int) -> list[slice]:
    """0 … width-1 in pieces of about `step`, cut where the place after `first` is in the grain."""
    step = max(grain, step // grain * grain)
    cuts = [0, *range(step - first % grain, width, step), width]
    return [slice(i, j) for i, j in pairwise(cuts)]


def some_of(states: States, some: States) -> States:
    """Some of the states, by their places among them."""
    if isinstance(states, Tensor):
        return states[some]
    if isinstance(some, Tensor):
        return some + states.start
    return slice(states.start + some.start, states.start + some.stop)
