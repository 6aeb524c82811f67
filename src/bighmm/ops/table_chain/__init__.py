"""Questions about a dense model with few states, in compiled loops on a CPU.

A step of a small model is far less work than the call of one torch operation, so a loop in Python
costs more than what it does. Here the loop over positions is compiled by numba: `sums` has the
forward and backward sweeps, `paths` the best paths, `narrow` both for very few states, `draws`
samples. The reference for each is the torch form in `ops.dense_chain.plain` or in `infer`; answers
agree up to rounding, also where probabilities are as low as they can be. There is no gradient.

Z states, B rows, T positions, U different words.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bighmm.ops.log_matmul import SMALLEST_SUM

__all__ = [
    *("LARGEST", "Counted", "Matrix", "Rows", "Tables", "Words"),
    *("best_path", "best_paths", "count", "cumulated", "draw_tokens", "filter_rows", "shares"),
    *("prepare_matrix", "prepare_start", "prepare_words", "smooth"),
]

FEW_CELLS = 2**12  # of a table up to which making it in a compiled loop is faster than in torch
LARGEST = 2**11  # states; a step of more is a product that torch does as well
SAFE_SHARE = {torch.float32: 1e-18, torch.float64: 1e-200}  # Σ a b that needs no logarithms


class Rows(NamedTuple):
    """Sequences of words as the loops read them."""

    ids: np.ndarray  # (B, T) int64, places among the `Words`
    lengths: np.ndarray  # (B,) int64
    fresh: np.ndarray  # (B,) bool: the first state is drawn from the start distribution; or empty
    end: int  # after this word a state is drawn from there, too; -1 for none


class Start(NamedTuple):
    probs: np.ndarray  # (Z,)
    log_probs: np.ndarray  # (Z,)


class Matrix(NamedTuple):
    """A transition matrix as the loops read it."""

    log_probs: np.ndarray  # (Z, Z) log p(j | i)
    log_columns: np.ndarray  # its transpose
    probs: np.ndarray
    columns: np.ndarray
    trusted: bool  # no product with a number from SMALLEST_SUM up is below the smallest number


class Words(NamedTuple):
    """What the states emit of some words."""

    probs: np.ndarray  # (U, Z) p(x | z), divided by the largest of its word
    log_probs: np.ndarray  # (U, Z) its logarithm
    log_peaks: np.ndarray  # (U,) log of what it was divided by, float64


class Tables(NamedTuple):
    """A model, or as much of it as some rows need."""

    start: Start
    matrix: Matrix
    words: Words

    @property
    def size(self) -> int:
        return len(self.start.probs)

    def limit(self, of_types: dict[torch.dtype, float]) -> np.generic:
        """A limit as a number of the type that the tables have."""
        kind = self.start.probs.dtype.type
        return kind(of_types[torch.float32 if kind is np.float32 else torch.float64])


class Counted(NamedTuple):
    log_prob: Tensor  # (B,)
    ended: Tensor  # (B, Z) log p(z | x) at the end of each row; or empty
    start: Tensor  # (Z,) expected starts
    transition: Tensor  # (Z, Z) expected moves
    emission: Tensor  # (U, Z) expected emissions of each word


def prepare_start(log_probs: Tensor) -> Start | None:
    """Log-probabilities (Z,) as the loops read them; None if some are NaN."""
    log_probs = log_probs.detach().contiguous()
    if not bool((log_probs < torch.inf).all()):
        return None
    return Start(log_probs.exp().numpy(), log_probs.numpy())


def prepare_matrix(log_probs: Tensor) -> Matrix | None:
    """Log-probabilities (Z, Z) as the loops read them; None if some are NaN."""
    log_probs = log_probs.detach().contiguous()
    if log_probs.numel() <= FEW_CELLS:
        logs = log_probs.numpy()
        columns, probs, both = np.empty_like(logs), np.empty_like(logs), np.empty_like(logs)
        least = _making().make_matrix(logs, columns, probs, both)
    else:
        logs, columns = log_probs.numpy(), log_probs.T.contiguous().numpy()
        exps = log_probs.exp()
        probs, both = exps.numpy(), exps.T.contiguous().numpy()
        least = float(log_probs.masked_fill(log_probs == -torch.inf, 0.0).min())
        least = least if bool((log_probs < torch.inf).all()) else math.nan
    if math.isnan(least):
        return None
    limits = SMALLEST_SUM[log_probs.dtype], torch.finfo(log_probs.dtype).tiny
    return Matrix(logs, columns, probs, both, math.exp(least) * limits[0] >= limits[1])


def prepare_words(log_probs: Tensor) -> Words | None:
    """Log-probabilities (U, Z) of some words; None if some are NaN."""
    log_probs = log_probs.detach()
    if log_probs.numel() <= FEW_CELLS:
        logs = log_probs.contiguous().numpy()
        made = Words(np.empty_like(logs), np.empty_like(logs), np.empty(len(logs)))
        return None if math.isnan(_making().make_words(logs, *made)) else made
    peaks = log_probs.amax(1)
    if not bool((peaks < torch.inf).all()):
        return None
    scaled = (log_probs - peaks.clamp(min=torch.finfo(peaks.dtype).min).unsqueeze(1)).contiguous()
    peaks = peaks.double().nan_to_num(neginf=0.0)
    return Words(scaled.exp().numpy(), scaled.numpy(), peaks.numpy())


def _making() -> ModuleType:
    from bighmm.ops.table_chain import making

    return making


def filter_rows(
    rows: Rows, tables: Tables, carried: np.ndarray | None = None, ends: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """log p (B,) in float64, and log p(z | x) (B, Z) where each row `ends`, if that is asked for.

    carried (B, Z): log p(z | what came before). Without it rows begin with a start.
    """
    total, ended, _ = _forward(rows, tables, carried, _nothing(tables), ends)
    return total, ended


def smooth(rows: Rows, tables: Tables) -> tuple[np.ndarray, Tensor]:
    """log p (B,), and p(z_t | x) (B, T, Z), zero in the padding and where p(x) is zero."""
    stored = _stored(rows, tables)
    total, _, redo = _forward(rows, tables, None, stored, ends=False)
    marginals = np.zeros((*rows.ids.shape, tables.size), stored.dtype)
    _backward(rows, tables, (total, stored, redo), marginals, None)
    return total, torch.from_numpy(marginals)


def count(
    rows: Rows, tables: Tables, carried: np.ndarray | None = None, ends: bool = False
) -> Counted:
    """Expected counts summed over the rows; a row of probability zero adds nothing.

    carried, ends: as for `filter_rows`.
    """
    stored = _stored(rows, tables)
    total, ended, redo = _forward(rows, tables, carried, stored, ends)
    parts: list[tuple[np.ndarray, ...]] = []
    _backward(rows, tables, (total, stored, redo), _nothing(tables), parts)
    starts, moves, emissions = (sum(some[1:], some[0]) for some in zip(*parts, strict=True))
    found = (torch.from_numpy(t) for t in (ended, starts, moves, emissions))
    return Counted(torch.from_numpy(total).to(torch.from_numpy(stored).dtype), *found)


def best_path(rows: Rows, tables: Tables) -> tuple[np.ndarray, np.ndarray]:
    """log p(x, z) (B,) of the best path, and the path (B, T), -1 where there is none."""
    from bighmm.ops.jit import over_rows
    from bighmm.ops.table_chain import narrow, paths

    path, total = np.full(rows.ids.shape, -1), np.zeros(len(rows.ids))
    log_start, matrix, words = tables.start.log_probs, tables.matrix, tables.words

    def work(order: np.ndarray) -> None:
        if narrow.fits(tables.size, len(order)):
            emissions = (words.log_probs, words.log_peaks)
            narrow.search(
                tuple(rows), order, log_start, matrix.log_columns, *emissions, path, total
            )
            return
        scores = np.empty((len(order), rows.lengths[order[0]], tables.size), log_start.dtype)
        moves, emitted = (matrix.log_probs, matrix.log_columns), (words.log_probs, words.log_peaks)
        paths.search(tuple(rows), order, log_start, moves, emitted, scores, path, total)

    over_rows(work, rows.lengths, tables.size**2)
    return total, path


def best_paths(rows: Rows, tables: Tables, k: int) -> tuple[np.ndarray, np.ndarray]:
    """log p(x, z) (B, k) of the k best paths, and the paths (B, k, T), -1 where there is none."""
    from bighmm.ops.jit import over_rows
    from bighmm.ops.table_chain import paths

    path = np.full((len(rows.ids), k, rows.ids.shape[1]), -1)
    total = np.full((len(rows.ids), k), -np.inf)
    emitted = (tables.words.log_probs, tables.words.log_peaks)
    given = (tables.start.log_probs, tables.matrix.log_columns, emitted)

    def work(order: np.ndarray) -> None:
        paths.search_many(tuple(rows), order, *given, path, total)

    over_rows(work, rows.lengths, k * tables.size**2)
    return total, path


def cumulated(log_weights: Tensor) -> np.ndarray:
    """Sums (N, C) of the weights of each row up to each place, as `ops.drawing` looks them up."""
    return log_weights.softmax(1).cumsum(1, dtype=torch.float64).numpy()


def draw_tokens(
    states: Tensor,
    fresh: Tensor,
    sums: tuple[np.ndarray, np.ndarray, np.ndarray],
    chosen: Tensor,
    end: int | None,
    with_states: bool = False,
) -> tuple[Tensor, Tensor]:
    """Tokens (N, L) that follow `states` (N,), which are changed to the last ones, as is `fresh`.

    Second, if it is asked for, the states (N, L) that emit them.

    sums: of start (1, Z), transition (Z, Z) and emission (Z, V), from `cumulated`.
    chosen (L, 2, N): random numbers from 0 to 1, for the state and the token of each place.
    fresh (N,) bool: the next state comes from the start distribution, as after the mark `end`.
    """
    from bighmm.ops.table_chain import draws

    tokens = np.empty((len(states), len(chosen)), np.int64)
    path, last = np.empty_like(tokens[: len(tokens) * with_states]), -1 if end is None else end
    draws.draw_tokens(states.numpy(), fresh.numpy(), *sums, chosen.numpy(), last, tokens, path)
    return torch.from_numpy(tokens), torch.from_numpy(path)


def shares(
    old: Tensor, counts: Tensor, size: float, smoothing: float, by_column: bool = False
) -> Tensor:
    """New log-probabilities (R, C) from counts; each row, or each column, is a distribution.

    size: 1 for the shares of the counts, less to go a part of the way to them.
    """
    from bighmm.ops.table_chain import mixing

    new, least = torch.empty_like(old, requires_grad=False), torch.finfo(old.dtype).tiny
    loop = mixing.of_columns if by_column else mixing.of_rows
    loop(old.detach().numpy(), counts.numpy(), float(size), float(smoothing), least, new.numpy())
    return new


def _forward(
    rows: Rows, tables: Tables, carried: np.ndarray | None, stored: np.ndarray, ends: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """log p (B,), log p(z | x) at the end, and the rows (B,) bool that `narrow` had to give up.

    Writes filtered vectors to `stored`, unless it is empty.
    """
    from bighmm.ops.jit import over_rows
    from bighmm.ops.table_chain import narrow, sums

    (probs, _), matrix, words = tables
    total, small = np.zeros(len(rows.ids)), tables.limit(SMALLEST_SUM)
    given_up = np.zeros(len(rows.ids), np.bool_)
    begin = np.empty((0, len(probs)), probs.dtype) if carried is None else carried
    ended = np.zeros((len(rows.ids) if ends else 0, len(probs)), probs.dtype)
    moves = (matrix.probs, matrix.log_columns, matrix.trusted)

    def work(order: np.ndarray) -> None:
        if carried is None and narrow.fits(tables.size, len(order)):
            narrow.forward(
                *(tuple(rows), order, probs, matrix.columns, words.probs, words.log_peaks, small),
                *(stored, ended, total, given_up),
            )
            order = order[given_up[order]]
            if len(order) == 0:
                return
            total[order] = 0.0
        given = (begin, tuple(tables.start), moves, tuple(words), small)
        sums.forward(tuple(rows), order, *given, stored, ended, total)

    over_rows(work, rows.lengths, tables.size**2)
    return total, ended, given_up


def _backward(
    rows: Rows,
    tables: Tables,
    forward: tuple[np.ndarray, np.ndarray, np.ndarray],
    marginals: np.ndarray,
    counts: list[tuple[np.ndarray, ...]] | None,
) -> None:
    """Fills `marginals`, unless it is empty; appends expected starts, moves and emissions to
    `counts`, in one or several parts.

    forward: log p, filtered vectors, and which rows `narrow` cannot do.
    """
    from bighmm.ops.jit import over_rows
    from bighmm.ops.table_chain import narrow, sums

    matrix, words, size = tables.matrix, tables.words, tables.size
    total, stored, given_up = forward
    limits = tables.limit(SMALLEST_SUM), tables.limit(SAFE_SHARE)
    shapes = ((0,), (0, 0), (0, 0))
    if counts is not None:
        shapes = ((size,), (size, size), words.probs.shape)

    def work(order: np.ndarray) -> None:
        if len(rows.fresh) == 0 and narrow.fits(size, len(order)):
            parts = [np.zeros(shape, stored.dtype) for shape in shapes]
            given = (matrix.probs, words.probs, *limits, stored, marginals, tuple(parts))
            if not narrow.backward(tuple(rows), order, *given, given_up):
                if counts is not None:
                    parts[1] *= matrix.probs
                    counts.append(tuple(parts))
                order = order[given_up[order]]
        if len(order):
            with_all(order)

    def with_all(order: np.ndarray) -> None:
        parts = [np.zeros(shape, stored.dtype) for shape in shapes]
        targets = _nothing(tables) if counts is None else np.zeros_like(stored)
        moves = (matrix.columns, matrix.log_probs, matrix.trusted)
        given = (moves, tuple(words), *limits, stored, total, marginals, (targets, *parts))
        sums.backward(tuple(rows), order, *given)
        if counts is not None:
            some = slice(None) if len(order) == len(stored) else order
            sources, entered = (torch.from_numpy(t[some]).view(-1, size) for t in (stored, targets))
            parts[1] += (sources.T @ entered).numpy() * matrix.probs
            counts.append(tuple(parts))

    over_rows(work, rows.lengths, 2 * size**2)


def _nothing(tables: Tables) -> np.ndarray:
    return np.empty((0, 0, 0), tables.start.probs.dtype)


def _stored(rows: Rows, tables: Tables) -> np.ndarray:
    batch, time = rows.ids.shape
    return np.zeros((batch, time + 1, tables.size), tables.start.probs.dtype)
