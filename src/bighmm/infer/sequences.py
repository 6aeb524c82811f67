"""What inference reads: ragged token sequences, and the state carried between windows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from bighmm.base.arrays import as_array, as_rows, as_tensor
from bighmm.model.model import Model
from bighmm.ops import memory
from bighmm.ops.carry import after_window
from bighmm.ops.impl import use_compiled
from bighmm.ops.table_chain import compiled


@dataclass(frozen=True)
class Sequences:
    """Token sequences of unequal length; padding has been replaced by token 0 and is never used."""

    ids: Tensor  # (B, T) long
    lengths: Tensor  # (B,) long
    end: int | None = None  # the state after this token comes from the start distribution
    hidden: Tensor | None = None
    """(B, T) bool: of the token at t it is only known that its states are those that may emit it,
    in a blocked model the block. Training leaves words out so; other questions do not."""
    ragged: bool = True  # some rows may be shorter than T

    @cached_property
    def fresh(self) -> Tensor:
        """(B, T) bool: the state at t comes from the start distribution.

        In windows that go on from a carry, the carry says it of the first position.
        """
        fresh = torch.zeros_like(self.ids, dtype=torch.bool)
        fresh[:, :1].fill_(True)  # an assignment would copy a number from the host
        if self.end is not None:
            torch.eq(self.ids[:, :-1], self.end, out=fresh[:, 1:])
        return fresh

    @staticmethod
    def single(tokens: Tensor) -> Sequences:
        """One token for each row (B,), which goes on from a carry."""
        return Sequences(tokens.unsqueeze(1), torch.ones_like(tokens))

    def rows(self, chosen: Tensor) -> Sequences:
        """Some of the sequences, cut to the longest of them."""
        lengths = self.lengths[chosen]
        longest = int(lengths.max())
        hidden = None if self.hidden is None else self.hidden[chosen, :longest]
        return Sequences(self.ids[chosen, :longest], lengths, self.end, hidden)

    def window(self, first: int, last: int) -> Sequences:
        """Positions first … last-1 of every sequence."""
        lengths = (self.lengths - first).clamp(0, last - first)
        hidden = None if self.hidden is None else self.hidden[:, first:last]
        return Sequences(self.ids[:, first:last], lengths, self.end, hidden)

    def inside(self) -> Tensor:
        """(B, T) bool: t is not in the padding."""
        time = self.ids.shape[1]
        return torch.arange(time, device=self.ids.device) < self.lengths.unsqueeze(1)


class EqualRows(Sequences):
    """Sequences of the same length, which are made with as little as possible: a question about a
    short text takes no longer than a few tensors."""

    def __init__(self, ids: Tensor, end: int | None) -> None:
        self.__dict__.update(ids=ids, end=end, hidden=None, ragged=False)

    @cached_property
    def lengths(self) -> Tensor:
        batch, time = self.ids.shape
        return torch.full((batch,), time, device=self.ids.device)


@dataclass(frozen=True)
class Carry:
    """What is known after a prefix: its last token, and log p(state | prefix).

    After a prefix of probability zero log_alpha is -inf everywhere, and stays so.
    """

    tokens: Tensor  # (B,) the last token, any token where there was none
    log_alpha: Tensor  # (B, K) over the states of that token, normalised
    fresh: Tensor  # (B,) bool: the next state comes from the start distribution

    @staticmethod
    def at_start(model: Model, batch: int) -> Carry:
        """Before the first token."""
        size = model.support.states_per_token
        device = model.start.device
        return Carry(
            torch.zeros(batch, dtype=torch.long, device=device),
            model.start.new_full((batch, size), -math.log(size)),
            torch.ones(batch, dtype=torch.bool, device=device),
        )

    def rows(self, chosen: Tensor) -> Carry:
        """The carries of some rows; a row may occur several times."""
        return Carry(self.tokens[chosen], self.log_alpha[chosen], self.fresh[chosen])

    @property
    def possible(self) -> Tensor:
        """Whether the prefix has a probability above zero (B,)."""
        return self.log_alpha.amax(1) > -torch.inf

    def then(self, model: Model, window: Sequences, log_alpha: Tensor) -> Carry:
        """After `window`, whose last filtered distributions are log_alpha (B, K) up to a factor."""
        if window.ids.shape[1] == 0:
            return self
        end = model.end if model.reset else None
        before = (self.tokens, self.log_alpha, self.fresh)
        return Carry(*after_window(window.ids, window.lengths, log_alpha, before, end))


def ends_text(model: Model, tokens: Tensor) -> Tensor:
    """Whether the state after `tokens` is drawn from the start distribution."""
    if model.end is None or not model.reset:
        return torch.zeros_like(tokens, dtype=torch.bool)
    return tokens == model.end


def validate(model: Model, tokens: Any, lengths: Any = None) -> Sequences:
    """Sequences from token ids (B, T) and lengths (B,), with the padding blanked out.

    A list of rows needs no lengths, and the rows may have different ones; they may be lists, NumPy
    arrays or tensors. Raises ValueError for wrong shapes, lengths outside 0 … T, and ids outside
    the vocabulary.
    """
    whole = lengths is None or _are_whole(tokens, lengths)
    if whole and _is_table(tokens, model):  # the usual case, without a look at the rest
        return EqualRows(tokens, model.end if model.reset else None)
    tokens, lengths = rectangular(tokens, lengths)
    tokens = as_tensor(tokens).to(model.start.device)
    if tokens.dim() != 2 or (tokens.numel() and tokens.is_floating_point()):
        raise ValueError(
            f"tokens must be whole numbers of shape (batch, time), not {tokens.dtype} of shape "
            f"{tuple(tokens.shape)}"
        )
    tokens = tokens.long()
    batch, time = tokens.shape
    if lengths is None:
        if _is_table(tokens, model):
            return EqualRows(tokens, model.end if model.reset else None)
        lengths = torch.full((batch,), time, device=tokens.device)
    lengths = as_tensor(lengths).to(tokens.device)
    fits = lengths.shape == (batch,) and not (batch and lengths.is_floating_point())
    if not fits or bool(((lengths < 0) | (lengths > time)).any()):
        raise ValueError(
            f"lengths must be {batch} whole numbers from 0 to {time}, one per row of tokens, "
            f"not {lengths.reshape(-1).tolist()[:8]}"
        )
    lengths = lengths.long()
    inside = torch.arange(time, device=tokens.device) < lengths.unsqueeze(1)
    vocabulary_size = model.support.vocabulary_size
    wrong = inside & ((tokens < 0) | (tokens >= vocabulary_size))
    if bool(wrong.any()):
        row, place = torch.nonzero(wrong)[0].tolist()
        raise ValueError(
            f"token id {int(tokens[row, place])} in row {row}, position {place} is not in the "
            f"vocabulary: ids go from 0 to {vocabulary_size - 1}"
        )
    return unchecked(model, tokens.masked_fill(~inside, 0), lengths)


def unchecked(model: Model, ids: Tensor, lengths: Tensor) -> Sequences:
    """Sequences of ids (B, T) that are known to be in the vocabulary, with 0 in the padding."""
    return Sequences(ids, lengths, model.end if model.reset else None)


def _are_whole(tokens: Any, lengths: Any) -> bool:
    """Whether these are tensors, and each row is as long as the table."""
    if not isinstance(tokens, Tensor) or not isinstance(lengths, Tensor) or tokens.dim() != 2:
        return False
    if lengths.shape != tokens.shape[:1] or lengths.is_floating_point():
        return False
    return bool((lengths == tokens.shape[1]).all())


def _is_table(tokens: Any, model: Model) -> bool:
    """Whether these are token ids (B, T) of the vocabulary, on the model's device."""
    if not isinstance(tokens, Tensor) or tokens.dtype != torch.long or tokens.dim() != 2:
        return False
    if tokens.device != model.start.device or tokens.numel() == 0:
        return False
    if use_compiled(model.start):
        return bool(compiled().all_below(as_array(tokens), model.support.vocabulary_size))
    least, most = torch.aminmax(tokens)
    return int(least) >= 0 and int(most) < model.support.vocabulary_size


def rectangular(tokens: Any, lengths: Any) -> tuple[Any, Any]:
    """A list of rows as `padded` makes it; other values unchanged.

    Raises ValueError if rows of different lengths come with other lengths.
    """
    rows = as_rows(tokens)
    if rows is None:
        return tokens, lengths
    if lengths is None:
        return padded(rows)
    if len({len(row) for row in rows}) > 1:
        raise ValueError("rows of different lengths have lengths of their own; leave lengths out")
    return padded(rows)[0], lengths


def padded(rows: Sequence[Any]) -> tuple[Tensor, Tensor]:
    """Token ids (B, T) of rows of unequal length, with 0 in the padding, and the lengths (B,).

    Raises ValueError for rows that are not of whole numbers.
    """
    ids = [_whole(as_tensor(row), number) for number, row in enumerate(rows)]
    lengths = torch.tensor([len(row) for row in ids])
    return torch.nn.utils.rnn.pad_sequence(ids, batch_first=True), lengths


def _whole(row: Tensor, number: int) -> Tensor:
    """A row of token ids as int64 on the CPU; ValueError if it is something else."""
    if row.dim() != 1 or (len(row) and (row.is_floating_point() or row.is_complex())):
        raise ValueError(
            f"tokens must be whole numbers of shape (batch, time), not {row.dtype} of shape "
            f"{tuple(row.shape)} in row {number}"
        )
    return row.long().cpu()


def cost_per_position(model: Model) -> int:
    """About how many numbers inference holds for one position of one sequence."""
    support = model.support
    return support.num_states if support.is_dense else support.states_per_token**2


def in_parts(
    model: Model,
    sequences: Sequences,
    answer: Callable[[Sequences], tuple[Tensor, Tensor]],
    blank: Callable[[], Tensor],
) -> tuple[Tensor, Tensor]:
    """`answer` applied to all rows, or to groups of rows of similar length that fit in memory.

    An answer has a number for each row (B,) and something for each position (B, T, …), which is
    what `blank` makes in the padding.
    """
    (batch, time), device = sequences.ids.shape, sequences.ids.device
    if 0 < batch <= memory.at_once(time * cost_per_position(model), device) and time > 0:
        return answer(sequences)
    of_rows, of_positions = model.start.new_zeros(batch), blank()
    for rows in batches_by_length(sequences.lengths, cost_per_position(model)):
        part = sequences.rows(rows)
        of_rows[rows], of_positions[rows, : part.ids.shape[1]] = answer(part)
    return of_rows, of_positions


def batches_by_length(lengths: Tensor, cost: int) -> list[Tensor]:
    """Row numbers in groups of similar length, whose padded cost stays within the memory limit."""
    order = lengths.argsort(descending=True, stable=True)
    groups: list[Tensor] = []
    first = 0
    while first < len(order):
        longest = max(1, int(lengths[order[first]]))
        rows = memory.at_once(longest * cost, lengths.device)
        groups.append(order[first : first + rows])
        first += rows
    return groups


def windows(model: Model, batch: int, time: int) -> list[tuple[int, int]]:
    """0 … time cut into windows whose cost over `batch` rows stays within the memory limit."""
    cost = max(1, batch) * cost_per_position(model)
    return [(w.start, w.stop) for w in memory.pieces(time, cost, model.start.device)]
