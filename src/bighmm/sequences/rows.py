"""Sequences of whole numbers as people have them: a list of arrays, or one array and lengths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bighmm.infer.sequences import batches_by_length


@dataclass(frozen=True)
class Rows:
    """Sequences of symbols, some perhaps empty."""

    rows: list[np.ndarray]  # each (T,) int64, nothing below 0
    joined: bool  # they came as one array, so answers per symbol are one array too

    @property
    def symbols(self) -> int:
        """How many symbols there are in all."""
        return sum(len(row) for row in self.rows)

    def check_known(self, known: int) -> None:
        """Raises ValueError for the first symbol that is not below `known`."""
        for number, row in enumerate(self.rows):
            new = np.flatnonzero(row >= known)
            if len(new):
                raise ValueError(
                    f"symbol {row[new[0]]} in sequence {number} at position {new[0]} is not known: "
                    f"symbols go from 0 to {known - 1}; give a larger n_symbols before fitting"
                )

    def padded(self, chosen: list[int]) -> tuple[Tensor, Tensor]:
        """Some of the sequences side by side (B, T), 0 in the padding, and their lengths (B,)."""
        rows = [torch.from_numpy(self.rows[number]) for number in chosen]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        return ids, torch.tensor([len(row) for row in rows])

    def batches(self, cost_per_position: int = 16) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """All sequences, those of similar length together: their numbers, ids and lengths."""
        lengths = torch.tensor([len(row) for row in self.rows])
        for group in batches_by_length(lengths, cost_per_position):
            chosen = group.tolist()
            yield chosen, *self.padded(chosen)

    def like_given(self, answers: list[np.ndarray]) -> np.ndarray | list[np.ndarray]:
        """Answers per symbol in the form in which the sequences came."""
        return np.concatenate(answers) if self.joined else answers


def read_rows(X: Any, lengths: Any = None) -> Rows:
    """One sequence (T,) or (T, 1), several of them end to end with their `lengths`, a list of
    sequences, or an array (N, T) of N sequences with T > 1.

    Raises ValueError for anything else, for symbols that are not whole numbers from 0 on, and for
    lengths that do not add up to the symbols.
    """
    if lengths is not None:
        stream = _row(X, 0)
        sizes = np.asarray(lengths)
        if sizes.ndim != 1 or sizes.dtype.kind not in "iu" or (sizes < 0).any():
            raise ValueError("lengths must be a list of whole numbers, one for each sequence")
        if sizes.sum() != len(stream):
            raise ValueError(
                f"lengths add up to {sizes.sum()}, but there are {len(stream)} symbols"
            )
        return Rows(np.split(stream, np.cumsum(sizes)[:-1]), joined=True)
    if isinstance(X, (list, tuple)):
        several = len(X) > 0 and (isinstance(X[0], (list, tuple)) or np.ndim(X[0]) > 0)
    else:
        given, X = X, np.asarray(X)
        if X.ndim == 0:
            raise ValueError(
                "sequences must be a list of arrays or one array of whole numbers, not "
                f"{type(given).__name__}"
            )
        several = X.dtype == object or (X.ndim == 2 and X.shape[1] != 1)
    if several:
        return Rows([_row(row, number) for number, row in enumerate(X)], joined=False)
    if len(X) == 0:
        raise ValueError("there are no sequences")
    return Rows([_row(X, 0)], joined=True)


def _row(values: Any, number: int) -> np.ndarray:
    try:
        row = np.asarray(values)
    except ValueError:  # lists of unequal length inside
        row = np.empty(0, object).reshape(0, 0)
    if row.ndim == 2 and row.shape[1] == 1:
        row = row[:, 0]
    if row.ndim != 1 or (len(row) and row.dtype.kind not in "iu"):
        raise ValueError(
            f"sequence {number} must be one list of whole numbers, not {row.dtype} of shape "
            f"{row.shape}"
        )
    if len(row) and int(row.min()) < 0:
        raise ValueError(f"sequence {number} has the symbol {row.min()}; symbols go from 0 on")
    return row.astype(np.int64)
