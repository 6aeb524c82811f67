"""Sequences of symbols as numbers, and the batches that inference reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bighmm.infer.sequences import batches_by_length


@dataclass(frozen=True)
class Rows:
    """Sequences of symbols, some perhaps empty.

    A symbol that is missing has the number `size`, one that fitting did not see `size + 1`.
    """

    rows: list[np.ndarray]  # each (T,) int64 from 0 to size + 1
    size: int  # the number of symbols
    joined: bool  # they came as one array, so answers per symbol are one array too

    @property
    def positions(self) -> int:
        """How many places there are in all."""
        return sum(len(row) for row in self.rows)

    @property
    def observed(self) -> int:
        """How many symbols there are in all, without those that are missing."""
        return sum(int((row != self.size).sum()) for row in self.rows)

    @property
    def gapped(self) -> bool:
        """Whether some symbols are missing or were not seen."""
        return any(len(row) and int(row.max()) >= self.size for row in self.rows)

    def with_unseen(self, unseen: np.ndarray) -> Rows:
        """The same where some symbols (V,) bool were not seen either."""
        if not unseen.any():
            return self
        number = np.arange(self.size + 2)
        number[: self.size][unseen] = self.size + 1
        return Rows([number[row] for row in self.rows], self.size, self.joined)

    def padded(self, chosen: list[int]) -> tuple[Tensor, Tensor]:
        """Some of the sequences side by side (B, T), 0 in the padding, and their lengths (B,)."""
        rows = [torch.from_numpy(self.rows[number]) for number in chosen]
        if len(rows) == 1:
            return rows[0].unsqueeze(0), torch.tensor([len(rows[0])])
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        return ids, torch.tensor([len(row) for row in rows])

    def batches(self, cost_per_position: int = 16) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """All sequences, those of similar length together: their numbers, ids and lengths."""
        lengths = torch.tensor([len(row) for row in self.rows])
        for group in batches_by_length(lengths, max(16, cost_per_position)):
            chosen = group.tolist()
            yield chosen, *self.padded(chosen)

    def like_given(self, answers: list[np.ndarray]) -> np.ndarray | list[np.ndarray]:
        """Answers per symbol in the form in which the sequences came."""
        return np.concatenate(answers) if self.joined else answers
