"""Dense models with few states on a CPU: their tables as the compiled loops of `ops.table_chain`
read them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bighmm.base.caching import cached_object, needs_gradient
from bighmm.infer.sequences import Carry, Sequences
from bighmm.model.model import Model
from bighmm.ops import memory, table_chain
from bighmm.ops.dense_chain import Windows
from bighmm.ops.impl import use_compiled
from bighmm.ops.table_chain import Matrix, Words


class Prepared(NamedTuple):
    """The arguments of the functions of `ops.table_chain`."""

    windows: Windows  # ids are places among `words`
    start: Tensor
    matrix: Matrix
    words: Words


def prepare(
    model: Model, window: Sequences, carry: Carry, impl: str = "auto"
) -> tuple[Prepared, Tensor | None] | None:
    """What the compiled loops need, and the tokens (U,) of its words; None stands for all tokens.

    None where the loops cannot be used: with gradients, many states, NaN, or no numba.
    """
    if window.ids.numel() == 0 or needs_gradient(model.operands) or not can_loop(model, impl):
        return None
    start, matrix = prepared_start(model), prepared_matrix(model)
    words, tokens, ids = _words_of(model, window.ids)
    if start is None or matrix is None or words is None:
        return None
    windows = Windows(ids, window.fresh, window.lengths, carry.log_alpha.detach(), carry.fresh)
    return Prepared(windows, start, matrix, words), tokens


def can_loop(model: Model, impl: str = "auto") -> bool:
    """Whether this model is one that the compiled loops can do.

    Raises ValueError if they are asked for and cannot run here.
    """
    return (
        use_compiled(model.start, impl)
        and model.support.is_dense
        and model.num_states <= table_chain.LARGEST
    )


def prepared_start(model: Model) -> Tensor | None:
    """log p(z_1) (Z,); None if some are NaN."""

    def compute() -> Tensor | None:
        start = model.start.detach().contiguous()
        return start if bool((start < torch.inf).all()) else None

    return cached_object(model, "_looped_start", compute)


def prepared_matrix(model: Model) -> Matrix | None:
    """The transitions, cached with them; None if some are NaN."""
    transitions = model.transitions

    def compute() -> Matrix | None:
        with torch.no_grad():
            return table_chain.prepare_matrix(transitions.log_probs())

    return cached_object(transitions, "_looped", compute)


def _words_of(model: Model, ids: Tensor) -> tuple[Words | None, Tensor | None, Tensor]:
    """What the words of `ids` (B, T) are emitted with, their tokens (U,), and ids among these.

    A small vocabulary is done once and cached; of a large one only the words that occur.
    """
    emissions, size = model.emissions, model.vocabulary_size
    small = size * model.num_states <= memory.STREAMED or "_looped" in vars(emissions)
    with torch.no_grad():
        if small or (size <= ids.numel() and size * model.num_states <= memory.WORKING):
            whole = cached_object(
                emissions, "_looped", lambda: table_chain.prepare_words(emissions.table)
            )
            return whole, None, ids
        tokens, places = torch.unique(ids, return_inverse=True)
        return table_chain.prepare_words(emissions.of(tokens)), tokens, places
