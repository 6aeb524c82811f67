"""Dense models with few states on a CPU: their tables, and sequences, as the compiled loops of
`ops.table_chain` read them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from bighmm.base.arrays import as_array
from bighmm.base.caching import cached_object
from bighmm.infer.sequences import Carry, Sequences
from bighmm.model.model import Model
from bighmm.ops import memory
from bighmm.ops.impl import use_compiled
from bighmm.ops.table_chain import LARGEST, Rows, Tables, Words, compiled

EMPTY = np.empty(0, np.bool_)
SMALL_TABLES = 2**14  # cells up to which an iteration of Baum-Welch is faster without torch


class Loops:
    """Some rows of a model for which the loops can be used.

    The rows begin with a start unless they go on from a carry.
    """

    def __init__(
        self,
        sequences: Sequences,
        tables: Tables,
        tokens: Tensor | None,
        vocabulary_size: int,
        carry: Carry | None,
    ) -> None:
        ids, end = sequences.ids, -1 if sequences.end is None else sequences.end
        if tokens is not None:
            ids = torch.searchsorted(tokens, ids)
            found = torch.nonzero(tokens == end)
            end = int(found[0]) if len(found) else -1
        fresh, self.carried = EMPTY, None
        if carry is not None and not bool((carry.fresh & carry.possible).all()):
            fresh, self.carried = as_array(carry.fresh), as_array(carry.log_alpha)
        self.rows = Rows(as_array(ids), lengths_of(sequences), fresh, end)
        self.tables = tables
        self.tokens = tokens  # (U,) of which the tables have emissions; None: all tokens
        self.vocabulary_size = vocabulary_size

    def whole(self, emission: Tensor) -> Tensor:
        """Counts of all tokens (V, Z), from those of the tokens of the tables (U, Z)."""
        if self.tokens is None:
            return emission
        every = emission.new_zeros(self.vocabulary_size, emission.shape[1])
        return every.index_copy_(0, self.tokens, emission)


def prepare(
    model: Model, sequences: Sequences, impl: str = "auto", carry: Carry | None = None
) -> Loops | None:
    """The model and the rows as the loops read them.

    None where the loops cannot be used: many states, NaN, or no numba. Answers have no gradient.
    """
    if not can_loop(model, impl) or not _can_read(sequences):
        return None
    tables, tokens = cached_object(model, "_looped", lambda: _tables(model)), None
    if tables is None:
        return None
    if tables.words is None:
        tokens = sequences.ids.unique()
        with torch.no_grad():
            words = compiled().prepare_words(model.emissions.of(tokens))
        if words is None:
            return None
        tables = tables._replace(words=words)
    return Loops(sequences, tables, tokens, model.vocabulary_size, carry)


def refit(
    model: Model, sequences: Sequences, step_size: float, added: tuple[float, float, float]
) -> tuple[float, tuple[Tensor, Tensor, Tensor]] | None:
    """log p of all rows, and new start, transition and emission tables from their expected counts.

    None where the loops cannot be used for a whole iteration: tables of more than a few thousand
    cells, or rows that do not fit in memory at once, besides what is said of `prepare`.
    """
    cells = model.num_states * max(model.num_states, model.vocabulary_size)
    if cells > SMALL_TABLES or not can_loop(model) or not _can_read(sequences):
        return None
    batch, time = sequences.ids.shape
    if batch > memory.at_once(time * model.num_states, model.start.device):
        return None
    loops, end = compiled(), -1 if sequences.end is None else sequences.end
    rows = Rows(as_array(sequences.ids), lengths_of(sequences), EMPTY, end)
    operands = (model.start, model.transitions.log_probs(), model.emission)
    _check_shapes(model, *(tuple(table.shape) for table in operands[1:]))
    found = loops.refit(rows, loops.LogTables(*map(as_array, operands)), step_size, added)
    if found is None:
        return None
    log_prob, new = found
    start, moves, emission = map(torch.from_numpy, new)
    return float(np.add.reduce(log_prob)), (start, moves, emission)


def _can_read(sequences: Sequences) -> bool:
    return sequences.ids.numel() > 0 and sequences.hidden is None


def lengths_of(sequences: Sequences) -> np.ndarray:
    """Lengths (B,) of the rows, which are not to be changed."""
    if sequences.ragged:
        return as_array(sequences.lengths)
    return _equal_lengths(*sequences.ids.shape)


@lru_cache(16)
def _equal_lengths(batch: int, time: int) -> np.ndarray:
    return np.full(batch, time)


def can_loop(model: Model, impl: str = "auto") -> bool:
    """Whether this model is one that the compiled loops can do.

    Raises ValueError if they are asked for and cannot run here.
    """
    return (
        use_compiled(model.start, impl) and model.support.is_dense and model.num_states <= LARGEST
    )


@torch.no_grad()
def _tables(model: Model) -> Tables | None:
    """The tables, with None for the emissions of a large vocabulary; None if some are NaN.

    Emissions and transitions keep theirs, as several models may share them.
    """
    transitions, emissions = model.transitions, model.emissions
    start = compiled().prepare_start(model.start)
    matrix = cached_object(
        transitions, "_looped", lambda: compiled().prepare_matrix(transitions.log_probs())
    )
    words: Words | None = None
    if model.vocabulary_size * model.num_states <= memory.STREAMED:
        words = cached_object(
            emissions, "_looped", lambda: compiled().prepare_words(emissions.table)
        )
        if words is None:
            return None
    if start is None or matrix is None:
        return None
    _check_shapes(model, matrix.log_probs.shape, None if words is None else words.log_probs.shape)
    return Tables(start, matrix, words)  # type: ignore[arg-type]


def _check_shapes(model: Model, moves: tuple[int, ...], words: tuple[int, ...] | None) -> None:
    """Raises ValueError for tables of other shapes than the model has.

    The loops do not look where tables end.
    """
    size = model.num_states
    if moves != (size, size) or words not in (None, (model.vocabulary_size, size)):
        raise ValueError(
            f"a model of {size} states and {model.vocabulary_size} tokens cannot have transitions "
            f"of shape {moves} and emissions of shape {words}"
        )
