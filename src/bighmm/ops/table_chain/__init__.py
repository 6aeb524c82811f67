"""Questions about a dense model with few states, in compiled loops on a CPU.

A step of a small model is far less work than the call of one torch operation, so a loop in Python
costs more than what it does. Here the loop over positions is compiled by numba: `sums` has the
forward and backward sweeps, `paths` the best paths, `draws` samples. The reference for each is the
torch form in `ops.dense_chain.plain` or in `infer`; answers agree up to rounding, also where
probabilities are as low as they can be. There is no gradient.

Z states, B rows, T positions, U different words.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bighmm.ops.dense_chain.plain import Windows
from bighmm.ops.log_matmul import SMALLEST_SUM

__all__ = [
    *("Counted", "Matrix", "Words", "best_path", "best_paths", "count", "cumulated", "draw_tokens"),
    *("filter_rows", "prepare_matrix", "prepare_words", "smooth"),
]

LARGEST = 2**11  # states; a step of more is a product that torch does as well
SAFE_SHARE = {torch.float32: 1e-18, torch.float64: 1e-200}  # Σ a b that needs no logarithms


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


class Counted(NamedTuple):
    log_prob: Tensor  # (B,)
    ended: Tensor  # (B, Z) log p(z | x) at the end of each row
    start: Tensor  # (Z,) expected starts
    transition: Tensor  # (Z, Z) expected moves
    emission: Tensor  # (U, Z) expected emissions of each word


def prepare_matrix(log_probs: Tensor) -> Matrix | None:
    """Log-probabilities (Z, Z) as the loops read them; None if some are NaN."""
    log_probs = log_probs.detach().contiguous()
    if not bool((log_probs < torch.inf).all()):
        return None
    probs = log_probs.exp()
    columns, log_columns = probs.T.contiguous(), log_probs.T.contiguous()
    least = float(log_probs.masked_fill(log_probs == -torch.inf, 0.0).min().exp())
    trusted = least * SMALLEST_SUM[probs.dtype] >= torch.finfo(probs.dtype).tiny
    arrays = (t.numpy() for t in (log_probs, log_columns, probs, columns))
    return Matrix(*arrays, trusted)


def prepare_words(log_probs: Tensor) -> Words | None:
    """Log-probabilities (U, Z) of some words; None if some are NaN."""
    log_probs = log_probs.detach()
    peaks = log_probs.amax(1)
    if not bool((peaks < torch.inf).all()):
        return None
    scaled = (log_probs - peaks.clamp(min=torch.finfo(peaks.dtype).min).unsqueeze(1)).contiguous()
    peaks = peaks.double().nan_to_num(neginf=0.0)
    return Words(scaled.exp().numpy(), scaled.numpy(), peaks.numpy())


def filter_rows(
    windows: Windows, start: Tensor, matrix: Matrix, words: Words
) -> tuple[Tensor, Tensor]:
    """log p (B,), and log p(z | x) (B, Z) at the end of each row; ids are those of `words`."""
    nothing = np.empty((0, 0, 0), matrix.probs.dtype)
    total, ended = _forward(windows, start, matrix, words, nothing)
    return total.to(start.dtype), ended


def smooth(
    windows: Windows, start: Tensor, matrix: Matrix, words: Words
) -> tuple[Tensor, Tensor]:
    """log p (B,), and p(z_t | x) (B, T, Z), zero in the padding and where p(x) is zero."""
    stored, marginals = _stored(windows, start), np.zeros(_shape(windows, start), _type(start))
    total, _ = _forward(windows, start, matrix, words, stored)
    _backward(windows, start, matrix, words, stored, total, marginals, None)
    return total.to(start.dtype), torch.from_numpy(marginals)


def count(windows: Windows, start: Tensor, matrix: Matrix, words: Words) -> Counted:
    """Expected counts summed over the rows; a row of probability zero adds nothing."""
    stored = _stored(windows, start)
    total, ended = _forward(windows, start, matrix, words, stored)
    targets = np.zeros_like(stored)
    sums: list[tuple[np.ndarray, ...]] = []
    nothing = np.empty((0, 0, 0), stored.dtype)
    _backward(windows, start, matrix, words, stored, total, nothing, (targets, sums))
    size = stored.shape[2]
    sources, entered = (torch.from_numpy(t).view(-1, size) for t in (stored, targets))
    moves = (sources.T @ entered).mul_(torch.from_numpy(matrix.probs))
    starts, of_logs, emissions = (
        torch.from_numpy(sum(parts[1:], parts[0])) for parts in zip(*sums, strict=True)
    )
    return Counted(total.to(start.dtype), ended, starts, moves.add_(of_logs), emissions)


def best_path(
    windows: Windows, start: Tensor, matrix: Matrix, words: Words
) -> tuple[Tensor, Tensor]:
    """log p(x, z) (B,) of the best path, and the path (B, T), -1 where there is none."""
    from bighmm.ops.jit import over_rows
    from bighmm.ops.table_chain import paths

    ids, anew, lengths = _arrays(windows)
    path = np.full(ids.shape, -1)
    total = np.zeros(len(ids))
    log_start = start.numpy()
    moves, emitted = (matrix.log_probs, matrix.log_columns), (words.log_probs, words.log_peaks)

    def work(order: np.ndarray) -> None:
        scores = np.empty((len(order), lengths[order[0]], len(log_start)), log_start.dtype)
        paths.search(ids, anew, lengths, order, log_start, moves, emitted, scores, path, total)

    over_rows(work, lengths, len(log_start) ** 2)
    return torch.from_numpy(total).to(start.dtype), torch.from_numpy(path)


def best_paths(
    windows: Windows, start: Tensor, matrix: Matrix, words: Words, k: int
) -> tuple[Tensor, Tensor]:
    """log p(x, z) (B, k) of the k best paths, and the paths (B, k, T), -1 where there is none."""
    from bighmm.ops.jit import over_rows
    from bighmm.ops.table_chain import paths

    ids, anew, lengths = _arrays(windows)
    path = np.full((len(ids), k, ids.shape[1]), -1)
    total = np.full((len(ids), k), -np.inf)
    log_start = start.numpy()
    emitted = (words.log_probs, words.log_peaks)

    def work(order: np.ndarray) -> None:
        paths.search_many(
            ids, anew, lengths, order, log_start, matrix.log_columns, emitted, path, total
        )

    over_rows(work, lengths, k * len(log_start) ** 2)
    return torch.from_numpy(total).to(start.dtype), torch.from_numpy(path)


def cumulated(log_weights: Tensor) -> np.ndarray:
    """Sums (N, C) of the weights of each row up to each place, as `ops.drawing` looks them up."""
    return log_weights.softmax(1).cumsum(1, dtype=torch.float64).numpy()


def draw_tokens(
    states: Tensor,
    fresh: Tensor,
    tables: tuple[np.ndarray, np.ndarray, np.ndarray],
    chosen: Tensor,
    end: int | None,
) -> Tensor:
    """Tokens (N, L) that follow `states` (N,), which are changed to the last ones, as is `fresh`.

    tables: sums of start (1, Z), transition (Z, Z) and emission (Z, V) from `cumulated`.
    chosen (L, 2, N): random numbers from 0 to 1, for the state and the token of each place.
    fresh (N,) bool: the next state comes from the start distribution, as after the mark `end`.
    """
    from bighmm.ops.table_chain import draws

    tokens = np.empty((len(states), len(chosen)), np.int64)
    last = -1 if end is None else end
    draws.draw_tokens(states.numpy(), fresh.numpy(), *tables, chosen.numpy(), last, tokens)
    return torch.from_numpy(tokens)


def _forward(
    windows: Windows, start: Tensor, matrix: Matrix, words: Words, stored: np.ndarray
) -> tuple[Tensor, Tensor]:
    """log p (B,) in float64, and log p(z | x) at the end; writes filtered vectors to `stored`."""
    from bighmm.ops.jit import over_rows
    from bighmm.ops.table_chain import sums

    ids, anew, lengths = _arrays(windows)
    carried = windows.carried.contiguous().numpy()
    ended, total = np.empty_like(carried), np.zeros(len(ids))
    first = (start.exp().numpy(), start.numpy())
    moves = (matrix.probs, matrix.log_columns, matrix.trusted)
    small = first[0].dtype.type(SMALLEST_SUM[start.dtype])

    def work(order: np.ndarray) -> None:
        sums.forward(
            *(ids, anew, lengths, order, carried, first, moves, tuple(words), small),
            *(stored, ended, total),
        )

    over_rows(work, lengths, carried.shape[1] ** 2)
    return torch.from_numpy(total), torch.from_numpy(ended)


def _backward(
    windows: Windows,
    start: Tensor,
    matrix: Matrix,
    words: Words,
    stored: np.ndarray,
    total: Tensor,
    marginals: np.ndarray,
    counts: tuple[np.ndarray, list[tuple[np.ndarray, ...]]] | None,
) -> None:
    """Fills `marginals`, or the targets and sums of `counts`, whichever are asked for."""
    from bighmm.ops.jit import over_rows
    from bighmm.ops.table_chain import sums

    ids, anew, lengths = _arrays(windows)
    size, made = len(start), stored.dtype
    moves = (matrix.columns, matrix.log_probs, matrix.trusted)
    small, safe = (made.type(limits[start.dtype]) for limits in (SMALLEST_SUM, SAFE_SHARE))

    def work(order: np.ndarray) -> None:
        targets = np.empty((0, 0, 0), made)
        shapes = ((0,), (0, 0), (0, 0))
        if counts is not None:
            targets, shapes = counts[0], ((size,), (size, size), words.probs.shape)
        of_part = tuple(np.zeros(shape, made) for shape in shapes)
        sums.backward(
            *(ids, anew, lengths, order, moves, tuple(words), small, safe, stored, total.numpy()),
            *(marginals, (targets, *of_part)),
        )
        if counts is not None:
            counts[1].append(of_part)

    over_rows(work, lengths, 2 * size**2)


def _arrays(windows: Windows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ids and whether each state is drawn anew (B, T), and lengths (B,)."""
    return windows.ids.numpy(), windows.drawn_anew().numpy(), windows.lengths.numpy()


def _type(start: Tensor) -> np.dtype:
    return start.numpy().dtype


def _shape(windows: Windows, start: Tensor) -> tuple[int, int, int]:
    return *windows.ids.shape, len(start)


def _stored(windows: Windows, start: Tensor) -> np.ndarray:
    batch, time, size = _shape(windows, start)
    return np.zeros((batch, time + 1, size), _type(start))
