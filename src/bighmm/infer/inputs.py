"""What inference reads: ragged token sequences, and the state carried between windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bighmm.infer.numerics import finite_or_zero
from bighmm.ops import at_once

if TYPE_CHECKING:
    from bighmm.hmm import HMM

CHUNK_ELEMENTS = 2**24  # potentials alive at once: 64 MiB in float32, and more on a GPU


@dataclass(frozen=True)
class Sequences:
    """Token sequences of unequal length; padding has been replaced by token 0 and is never used."""

    ids: Tensor  # (B, T) long
    lengths: Tensor  # (B,) long
    fresh: Tensor  # (B, T) bool: the state at t comes from the start distribution

    @staticmethod
    def single(tokens: Tensor) -> Sequences:
        """One token for each row (B,), which goes on from a carry."""
        column = tokens.unsqueeze(1)
        no_start = torch.zeros_like(column, dtype=torch.bool)  # the carry says it of the first
        return Sequences(column, torch.ones_like(tokens), no_start)

    def rows(self, chosen: Tensor) -> Sequences:
        """Some of the sequences, cut to the longest of them."""
        lengths = self.lengths[chosen]
        longest = int(lengths.max())
        return Sequences(self.ids[chosen, :longest], lengths, self.fresh[chosen, :longest])

    def window(self, first: int, last: int) -> Sequences:
        """Positions first … last-1 of every sequence."""
        lengths = (self.lengths - first).clamp(0, last - first)
        return Sequences(self.ids[:, first:last], lengths, self.fresh[:, first:last])


@dataclass(frozen=True)
class Carry:
    """What is known after a prefix: its last token, and log p(state | prefix).

    After a prefix of probability zero log_alpha is -inf everywhere, and stays so.
    """

    tokens: Tensor  # (B,) the last token, any token where there was none
    log_alpha: Tensor  # (B, K) over the states of that token, normalised
    fresh: Tensor  # (B,) bool: the next state comes from the start distribution

    @staticmethod
    def at_start(hmm: HMM, batch: int) -> Carry:
        """Before the first token."""
        alive = hmm.support.alive
        device = hmm.start.device
        return Carry(
            torch.zeros(batch, dtype=torch.long, device=device),
            hmm.start.new_full((batch, alive), -math.log(alive)),
            torch.ones(batch, dtype=torch.bool, device=device),
        )

    def rows(self, chosen: Tensor) -> Carry:
        """That of some rows, or of one several times."""
        return Carry(self.tokens[chosen], self.log_alpha[chosen], self.fresh[chosen])

    @property
    def possible(self) -> Tensor:
        """Whether the prefix has a probability above zero (B,)."""
        return self.log_alpha.amax(1) > -torch.inf

    def then(self, hmm: HMM, window: Sequences, log_alpha: Tensor) -> Carry:
        """After `window`, whose last filtered distributions are log_alpha (B, K) up to a factor."""
        empty = window.lengths == 0
        if window.ids.shape[1] == 0:
            return self
        place = (window.lengths - 1).clamp(min=0).unsqueeze(1)
        tokens = torch.where(empty, self.tokens, window.ids.gather(1, place).squeeze(1))
        fresh = torch.where(empty, self.fresh, ends_text(hmm, tokens))
        normalised = log_alpha - finite_or_zero(log_alpha.logsumexp(1, keepdim=True))
        kept = torch.where(empty.unsqueeze(1), self.log_alpha, normalised)
        return Carry(tokens, kept, fresh)


def ends_text(hmm: HMM, tokens: Tensor) -> Tensor:
    """Whether the state after `tokens` is drawn from the start distribution."""
    if hmm.end is None or not hmm.reset:
        return torch.zeros_like(tokens, dtype=torch.bool)
    return tokens == hmm.end


def read(hmm: HMM, tokens: Tensor, lengths: Tensor | None = None) -> Sequences:
    """Check token ids (B, T) and lengths (B,) and blank out the padding.

    A list of rows needs no lengths, and the rows may have different ones.

    Raises ValueError for wrong shapes, lengths outside 0 … T, and ids outside the vocabulary.
    """
    tokens, lengths = rectangular(tokens, lengths)
    tokens = torch.as_tensor(tokens, device=hmm.start.device)
    if tokens.dim() != 2 or (tokens.numel() and tokens.is_floating_point()):
        raise ValueError(
            f"tokens must be whole numbers of shape (batch, time), not {tokens.dtype} of shape "
            f"{tuple(tokens.shape)}"
        )
    tokens = tokens.long()
    batch, time = tokens.shape
    if lengths is None:
        lengths = torch.full((batch,), time, device=tokens.device)
    lengths = torch.as_tensor(lengths, device=tokens.device)
    fits = lengths.shape == (batch,) and not (batch and lengths.is_floating_point())
    if not fits or bool(((lengths < 0) | (lengths > time)).any()):
        raise ValueError(
            f"lengths must be {batch} whole numbers from 0 to {time}, one per row of tokens, "
            f"not {lengths.reshape(-1).tolist()[:8]}"
        )
    lengths = lengths.long()
    inside = torch.arange(time, device=tokens.device) < lengths.unsqueeze(1)
    vocabulary_size = hmm.support.vocabulary_size
    wrong = inside & ((tokens < 0) | (tokens >= vocabulary_size))
    if bool(wrong.any()):
        row, place = torch.nonzero(wrong)[0].tolist()
        raise ValueError(
            f"token id {int(tokens[row, place])} in row {row}, position {place} is not in the "
            f"vocabulary: ids go from 0 to {vocabulary_size - 1}"
        )
    return trusted(hmm, tokens.masked_fill(~inside, 0), lengths)


def rectangular(tokens: Any, lengths: Tensor | None) -> tuple[Any, Tensor | None]:
    """Rows of whole numbers, some longer than others, as `padded`; anything else as it is."""
    if lengths is not None or not isinstance(tokens, list | tuple):
        return tokens, lengths
    of_ids = all(
        isinstance(row, list | tuple) and all(isinstance(id, int) for id in row) for row in tokens
    )
    if not of_ids or len({len(row) for row in tokens}) < 2:
        return tokens, lengths
    return padded(tokens)


def padded(rows: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Token ids (B, T) of rows of unequal length, with 0 in the padding, and the lengths (B,)."""
    ids = [torch.tensor(row, dtype=torch.long) for row in rows]
    lengths = torch.tensor([len(row) for row in rows])
    return torch.nn.utils.rnn.pad_sequence(ids, batch_first=True), lengths


def trusted(hmm: HMM, ids: Tensor, lengths: Tensor) -> Sequences:
    """Sequences of ids (B, T) that are known to be in the vocabulary, with 0 in the padding."""
    fresh = torch.ones_like(ids, dtype=torch.bool)
    fresh[:, 1:] = ends_text(hmm, ids[:, :-1])
    return Sequences(ids, lengths, fresh)


def in_parts(
    sequences: Sequences,
    cost_per_position: int,
    answer: Callable[[Sequences], tuple[Tensor, Tensor]],
    results: tuple[Tensor, Tensor],
) -> tuple[Tensor, Tensor]:
    """`answer` for rows of similar length together: a number for each (B,), and for positions
    (B, T, …). Both are put into `results`, of which the padding stays as it is.
    """
    of_rows, of_positions = results
    for rows in batches_by_length(sequences.lengths, cost_per_position):
        part = sequences.rows(rows)
        of_rows[rows], of_positions[rows, : part.ids.shape[1]] = answer(part)
    return results


def batches_by_length(lengths: Tensor, cost_per_position: int) -> list[Tensor]:
    """Row numbers in groups of similar length whose padded cost stays within a limit."""
    order = lengths.argsort(descending=True, stable=True)
    groups: list[Tensor] = []
    first = 0
    while first < len(order):
        longest = max(1, int(lengths[order[first]]))
        rows = max(1, at_once(CHUNK_ELEMENTS, lengths.device) // (longest * cost_per_position))
        groups.append(order[first : first + rows])
        first += rows
    return groups


def windows(
    time: int, batch: int, cost_per_position: int, device: torch.device
) -> list[tuple[int, int]]:
    """Cut 0 … time into windows whose cost over `batch` rows stays within the same limit."""
    step = max(1, at_once(CHUNK_ELEMENTS, device) // (batch * cost_per_position))
    return [(t, min(t + step, time)) for t in range(0, time, step)]
