"""Dense models with few states on a CPU: their tables, and sequences, as the compiled loops of
`ops.table_chain` read them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from bighmm.base.caching import cached_object, needs_gradient
from bighmm.infer.sequences import Carry, Sequences
from bighmm.model.model import Model
from bighmm.ops import memory, table_chain
from bighmm.ops.impl import use_compiled
from bighmm.ops.table_chain import Rows, Tables, Words

EMPTY = np.empty(0, np.bool_)


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
            fresh = carry.fresh.contiguous().numpy()
            self.carried = carry.log_alpha.detach().contiguous().numpy()
        lengths = sequences.lengths.contiguous().numpy()
        self.rows = Rows(ids.contiguous().numpy(), lengths, fresh, end)
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

    None where the loops cannot be used: with gradients, many states, NaN, or no numba.
    """
    if not can_loop(model, impl) or needs_gradient(model.operands):
        return None
    if sequences.ids.numel() == 0 or sequences.hidden is not None:
        return None
    tables, tokens = cached_object(model, "_looped", lambda: _tables(model)), None
    if tables is None:
        return None
    if tables.words is None:
        tokens = sequences.ids.unique()
        with torch.no_grad():
            words = table_chain.prepare_words(model.emissions.of(tokens))
        if words is None:
            return None
        tables = tables._replace(words=words)
    return Loops(sequences, tables, tokens, model.vocabulary_size, carry)


def can_loop(model: Model, impl: str = "auto") -> bool:
    """Whether this model is one that the compiled loops can do.

    Raises ValueError if they are asked for and cannot run here.
    """
    return (
        use_compiled(model.start, impl)
        and model.support.is_dense
        and model.num_states <= table_chain.LARGEST
    )


@torch.no_grad()
def _tables(model: Model) -> Tables | None:
    """The tables, with None for the emissions of a large vocabulary; None if some are NaN.

    Emissions and transitions keep theirs, as several models may share them.
    """
    transitions, emissions = model.transitions, model.emissions
    start = table_chain.prepare_start(model.start)
    matrix = cached_object(
        transitions, "_looped", lambda: table_chain.prepare_matrix(transitions.log_probs())
    )
    words: Words | None = None
    if model.vocabulary_size * model.num_states <= memory.STREAMED:
        words = cached_object(
            emissions, "_looped", lambda: table_chain.prepare_words(emissions.table)
        )
        if words is None:
            return None
    if start is None or matrix is None:
        return None
    return Tables(start, matrix, words)  # type: ignore[arg-type]
