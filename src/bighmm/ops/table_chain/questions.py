"""The questions that the compiled loops answer, for some rows and the tables of a model.

Rows go side by side in as many threads as torch may use. Few states are done by `narrow`, which
gives up rows where a number comes near the smallest one; these, and all others, by `sums`.

Z states, B rows, T positions, U different words.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from bighmm.ops.jit import WORTH_A_THREAD, first_rows, over_rows
from bighmm.ops.log_matmul import SMALLEST_SUM
from bighmm.ops.table_chain import draws, narrow, paths, sums
from bighmm.ops.table_chain.making import all_below, log_shares
from bighmm.ops.table_chain.preparing import (
    cumulated,
    matrix_of,
    prepare_matrix,
    prepare_start,
    prepare_words,
    start_of,
    words_of,
)
from bighmm.ops.table_chain.refitting import LogTables, shares
from bighmm.ops.table_chain.tables import Counted, Rows, Tables

__all__ = [
    "LogTables",
    "all_below",
    "best_path",
    "best_paths",
    "count",
    "cumulated",
    "draw_tokens",
    "filter_rows",
    "log_shares",
    "prepare_matrix",
    "prepare_start",
    "prepare_words",
    "refit",
    "smooth",
]

KINDS: dict[Any, torch.dtype] = {
    np.dtype("float32"): torch.float32,
    np.dtype("float64"): torch.float64,
}
SMALL = {kind: kind.type(SMALLEST_SUM[of_torch]) for kind, of_torch in KINDS.items()}
SAFE_SHARE = {  # Σ a b that needs no logarithms
    np.dtype("float32"): np.float32(1e-18),
    np.dtype("float64"): np.float64(1e-200),
}
NOTHING = {kind: np.empty((0, 0, 0), kind) for kind in KINDS}  # asked of the loops
NO_COUNTS = {kind: tuple(np.empty((0,) * n, kind) for n in (1, 2, 2)) for kind in KINDS}


def filter_rows(
    rows: Rows, tables: Tables, carried: np.ndarray | None = None, ends: bool = False
) -> tuple[Tensor, np.ndarray]:
    """log p (B,), and log p(z | x) (B, Z) where each row `ends`, if that is asked for.

    carried (B, Z): log p(z | what came before). Without it rows begin with a start.
    """
    kind = tables.start.probs.dtype
    total, ended, _ = _forward(rows, tables, carried, NOTHING[kind], ends)
    return _as_tensor(total, kind), ended


def smooth(rows: Rows, tables: Tables) -> tuple[Tensor, Tensor]:
    """log p (B,), and p(z_t | x) (B, T, Z), zero in the padding and where p(x) is zero."""
    kind = tables.start.probs.dtype
    if _in_one_call(rows, tables):
        total, marginals = np.zeros(len(rows.ids)), _zeros(rows, tables)
        if _both(rows, tables, total, marginals, NO_COUNTS[kind]):
            return _as_tensor(total, kind), torch.from_numpy(marginals)
    stored = _stored(rows, tables)
    total, _, redo = _forward(rows, tables, None, stored, ends=False)
    marginals = _zeros(rows, tables)
    _backward(rows, tables, (total, stored, redo), marginals, None)
    return _as_tensor(total, stored.dtype), torch.from_numpy(marginals)


def count(
    rows: Rows, tables: Tables, carried: np.ndarray | None = None, ends: bool = False
) -> Counted:
    """Expected counts summed over the rows; a row of probability zero adds nothing.

    carried, ends: as for `filter_rows`.
    """
    total, ended, parts = _count(rows, tables, carried, ends)
    found = map(torch.from_numpy, (ended, *parts))
    return Counted(_as_tensor(total, ended.dtype), *found)


def refit(
    rows: Rows, old: LogTables, size: float, added: tuple[float, float, float]
) -> tuple[np.ndarray, LogTables] | None:
    """log p (B,) of the rows in float64, and new tables; None if some of the old are NaN.

    An iteration of Baum-Welch on small tables, in which nothing is a tensor.
    size, added: as for `refitting.shares`.
    """
    start, matrix, words = start_of(old.start), matrix_of(old.moves), words_of(old.emission)
    if start is None or matrix is None or words is None:
        return None
    log_prob, _, counts = _count(rows, Tables(start, matrix, words), None, ends=False)
    return log_prob, shares(old, LogTables(*counts), size, added)


def best_path(rows: Rows, tables: Tables) -> tuple[Tensor, Tensor]:
    """log p(x, z) (B,) of the best path, and the path (B, T), -1 where there is none."""
    path, total = np.full(rows.ids.shape, -1), np.zeros(len(rows.ids))
    log_start, matrix, words = tables.start.log_probs, tables.matrix, tables.words
    size, given = len(log_start), tuple(rows)

    def work(order: np.ndarray) -> None:
        if size <= narrow.FEW:
            emissions = (words.log_probs, words.log_peaks)
            narrow.search(given, order, log_start, matrix.log_columns, *emissions, path, total)
            return
        scores = np.empty((len(order), rows.lengths[order[0]], size), log_start.dtype)
        moves, emitted = (matrix.log_probs, matrix.log_columns), (words.log_probs, words.log_peaks)
        paths.search(given, order, log_start, moves, emitted, scores, path, total)

    over_rows(work, rows.lengths, size**2)
    return _as_tensor(total, log_start.dtype), torch.from_numpy(path)


def best_paths(rows: Rows, tables: Tables, k: int) -> tuple[Tensor, Tensor]:
    """log p(x, z) (B, k) of the k best paths, and the paths (B, k, T), -1 where there is none."""
    path = np.full((len(rows.ids), k, rows.ids.shape[1]), -1)
    total = np.full((len(rows.ids), k), -np.inf)
    log_start, emitted = tables.start.log_probs, (tables.words.log_probs, tables.words.log_peaks)
    given = (log_start, tables.matrix.log_columns, emitted)

    def work(order: np.ndarray) -> None:
        paths.search_many(tuple(rows), order, *given, path, total)

    over_rows(work, rows.lengths, k * len(log_start) ** 2)
    return _as_tensor(total, log_start.dtype), torch.from_numpy(path)


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
    tokens = np.empty((len(states), len(chosen)), np.int64)
    path, last = np.empty_like(tokens[: len(tokens) * with_states]), -1 if end is None else end
    draws.draw_tokens(states.numpy(), fresh.numpy(), *sums, chosen.numpy(), last, tokens, path)
    return torch.from_numpy(tokens), torch.from_numpy(path)


def _count(
    rows: Rows, tables: Tables, carried: np.ndarray | None, ends: bool
) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, ...]]:
    """log p (B,) in float64, log p(z | x) at the end, and expected starts, moves and emissions."""
    if carried is None and not ends and _in_one_call(rows, tables):
        (probs, _), _, words = tables
        size, kind, total = len(probs), probs.dtype, np.zeros(len(rows.ids))
        moves, emissions = np.zeros((size, size), kind), np.zeros(words.probs.shape, kind)
        counts = (np.zeros(size, kind), moves, emissions)
        if _both(rows, tables, total, NOTHING[kind], counts):
            return total, moves[:0], counts
    stored = _stored(rows, tables)
    total, ended, redo = _forward(rows, tables, carried, stored, ends)
    parts: list[tuple[np.ndarray, ...]] = []
    _backward(rows, tables, (total, stored, redo), NOTHING[stored.dtype], parts)
    if len(parts) > 1:
        parts = [tuple(sum(some[1:], some[0]) for some in zip(*parts, strict=True))]
    return total, ended, parts[0]


def _in_one_call(rows: Rows, tables: Tables) -> bool:
    """Whether `narrow` can do all rows in one thread, both ways."""
    (batch, time), size = rows.ids.shape, len(tables.start.probs)
    little = batch == 1 or batch * time * size * size < WORTH_A_THREAD
    return little and len(rows.fresh) == 0 and narrow.fits(size, batch)


def _both(
    rows: Rows,
    tables: Tables,
    total: np.ndarray,
    marginals: np.ndarray,
    counts: tuple[np.ndarray, ...],
) -> bool:
    """Fill what is not empty; False if a number came near the smallest one."""
    start, matrix, words = tables
    kind = start.probs.dtype
    return bool(
        narrow.both(
            *(tuple(rows), first_rows(len(rows.ids)), start.probs, (matrix.probs, matrix.columns)),
            *((words.probs, words.log_peaks), (SMALL[kind], SAFE_SHARE[kind])),
            *(marginals, counts, total),
        )
    )


def _forward(
    rows: Rows, tables: Tables, carried: np.ndarray | None, stored: np.ndarray, ends: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """log p (B,), log p(z | x) at the end, and the rows (B,) bool that `narrow` had to give up.

    Writes filtered vectors to `stored`, unless it is empty.
    """
    (probs, _), matrix, words = tables
    count, size, small = len(rows.ids), len(probs), SMALL[probs.dtype]
    total, given_up = np.zeros(count), np.zeros(count, np.bool_)
    ended = np.zeros((count if ends else 0, size), probs.dtype)
    given = tuple(rows)

    def work(order: np.ndarray) -> None:
        if carried is None and narrow.fits(size, len(order)):
            tables_of = (probs, matrix.columns, words.probs, words.log_peaks)
            if not narrow.forward(given, order, *tables_of, small, stored, ended, total, given_up):
                return
            order = order[given_up[order]]
            total[order] = 0.0
        begin = np.empty((0, size), probs.dtype) if carried is None else carried
        moves = (matrix.probs, matrix.log_columns, matrix.trusted)
        model = (begin, tuple(tables.start), moves, tuple(words), small)
        sums.forward(given, order, *model, stored, ended, total)

    over_rows(work, rows.lengths, size**2)
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
    matrix, words = tables.matrix, tables.words
    total, stored, given_up = forward
    size, kind, given = stored.shape[2], stored.dtype, tuple(rows)
    limits = (SMALL[kind], SAFE_SHARE[kind])
    shapes: tuple[tuple[int, ...], ...] = ((0,), (0, 0), (0, 0))
    if counts is not None:
        shapes = ((size,), (size, size), words.probs.shape)

    def work(order: np.ndarray) -> None:
        if len(rows.fresh) == 0 and narrow.fits(size, len(order)):
            parts = tuple([np.zeros(shape, kind) for shape in shapes])
            model = (matrix.probs, words.probs, *limits)
            left = narrow.backward(given, order, *model, stored, marginals, parts, given_up)
            if left >= 0:  # otherwise nothing of it is of use
                if counts is not None:
                    np.multiply(parts[1], matrix.probs, out=parts[1])
                    counts.append(parts)
                if left == 0:
                    return
                order = order[given_up[order]]
        with_all(order)

    def with_all(order: np.ndarray) -> None:
        parts = [np.zeros(shape, kind) for shape in shapes]
        targets = NOTHING[kind] if counts is None else np.zeros_like(stored)
        moves = (matrix.columns, matrix.log_probs, matrix.trusted)
        model = (moves, tuple(words), *limits)
        sums.backward(given, order, *model, stored, total, marginals, (targets, *parts))
        if counts is not None:
            some = slice(None) if len(order) == len(stored) else order
            sources, entered = (torch.from_numpy(t[some]).view(-1, size) for t in (stored, targets))
            parts[1] += (sources.T @ entered).numpy() * matrix.probs
            counts.append(tuple(parts))

    over_rows(work, rows.lengths, 2 * size**2)


def _zeros(rows: Rows, tables: Tables) -> np.ndarray:
    """Something for each state of each position (B, T, Z)."""
    batch, time = rows.ids.shape
    probs = tables.start.probs
    return np.zeros((batch, time, len(probs)), probs.dtype)


def _stored(rows: Rows, tables: Tables) -> np.ndarray:
    """Memory for the filtered vectors (B, T + 1, Z)."""
    batch, time = rows.ids.shape
    probs = tables.start.probs
    return np.zeros((batch, time + 1, len(probs)), probs.dtype)


def _as_tensor(total: np.ndarray, kind: np.dtype) -> Tensor:
    return torch.from_numpy(total if total.dtype == kind else total.astype(kind))
