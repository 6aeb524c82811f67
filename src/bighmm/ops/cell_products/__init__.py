"""Logits and normalisers of emissions where every word has its own list of states.

A *cell* is a pair of a word and one of its K states; cells are a table (V, K) in the order of the
lists. A list may be shorter: its last states are then -1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bighmm.ops import memory
from bighmm.ops.impl import Impl, use_triton
from bighmm.ops.matmul import as_operand, matmul

__all__ = ["cell_products", "normalise_columns", "normalise_listed", "normalise_scattered"]


def cell_products(words: Tensor, emit: Tensor, states: Tensor, impl: Impl = "torch") -> Tensor:
    """words_x · emit_z (V, K) for the states (V, K) of each word; words (V, H), emit (Z, H).

    The form for GPUs multiplies in bfloat16: words and emit must have such values already.
    """
    form = _PickedCells if use_triton(emit, impl) else _GatheredCells
    return form.apply(words, emit, states)


def normalise_columns(cells: Tensor) -> Tensor:
    """log p(x | z) (V, Z) from logits (V, Z), where every state may emit every word."""
    return _NormaliseColumns.apply(cells)


def normalise_listed(cells: Tensor, states: Tensor, places: Tensor) -> Tensor:
    """log p(x | z) (V, K) from logits (V, K), -inf where `states` (V, K) is -1.

    places (Z, W): where the cells of each state are in the table laid flat, padded with -1.
    """
    return _NormaliseListed.apply(cells, states, places)


def normalise_scattered(cells: Tensor, states: Tensor, num_states: int) -> Tensor:
    """As `normalise_listed`, without a list of each state's cells: sums are scattered."""
    flat = torch.where(states >= 0, states, num_states).view(-1)
    top = cells.new_full((num_states + 1,), -torch.inf)
    top = top.scatter_reduce(0, flat, cells.detach().reshape(-1), "amax")
    shifted = (cells.reshape(-1) - top.index_select(0, flat)).exp()
    norm = top + torch.zeros_like(top).index_add(0, flat, shifted).log()
    log_probs = cells - norm.index_select(0, flat).view(cells.shape)
    return log_probs.masked_fill(states < 0, -torch.inf)


class _NormaliseColumns(torch.autograd.Function):
    """log_softmax gives each of some hundred columns to one thread of a GPU, which then walks down
    tens of thousands of rows alone; sums over columns are shared among many.
    """

    @staticmethod
    def forward(ctx: Any, cells: Tensor) -> Tensor:
        log_probs = cells - cells.logsumexp(0)
        ctx.save_for_backward(log_probs)
        return log_probs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (log_probs,) = ctx.saved_tensors
        return torch.addcmul(grad, log_probs.exp(), grad.sum(0), value=-1)


class _NormaliseListed(torch.autograd.Function):
    """Sums are gathered and nothing is scattered: with state dropout half of the cells have no
    state, and on a GPU they would all wait for one place to be written.
    """

    @staticmethod
    def forward(ctx: Any, cells: Tensor, states: Tensor, places: Tensor) -> Tensor:
        norm = _of_each_state(cells, places, -torch.inf).logsumexp(1)
        log_probs = cells - norm.index_select(0, states.clamp(min=0).view(-1)).view(cells.shape)
        log_probs = log_probs.masked_fill(states < 0, -torch.inf)
        ctx.save_for_backward(log_probs, states, places)
        return log_probs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        log_probs, states, places = ctx.saved_tensors
        total = _of_each_state(grad, places, 0.0).sum(1)
        total = total.index_select(0, states.clamp(min=0).view(-1)).view(grad.shape)
        return (grad - log_probs.exp() * total).masked_fill(states < 0, 0.0), None, None


def _of_each_state(values: Tensor, places: Tensor, missing: float) -> Tensor:
    """(Z, W) of values (V, K), at `places` in them laid flat; `missing` where that is -1."""
    found = values.reshape(-1).index_select(0, places.clamp(min=0).view(-1)).view(places.shape)
    return found.masked_fill(places < 0, missing)


class _GatheredCells(torch.autograd.Function):
    """Gathering the state vectors of all cells at once would take V · K · H numbers, so words are
    done in chunks, forward and backward.
    """

    @staticmethod
    def forward(ctx: Any, words: Tensor, emit: Tensor, states: Tensor) -> Tensor:
        ctx.save_for_backward(words, emit, states)
        cells = words.new_empty(states.shape)
        for part in _chunks(words, states.shape[1] * words.shape[1]):
            gathered = emit.index_select(0, states[part].view(-1)).view(*states[part].shape, -1)
            cells[part] = torch.bmm(gathered, words[part].unsqueeze(2)).squeeze(2)
        return cells

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        words, emit, states = ctx.saved_tensors
        grad_words, grad_emit = torch.empty_like(words), torch.zeros_like(emit)
        for part in _chunks(words, states.shape[1] * words.shape[1]):
            ids = states[part]
            gathered = emit.index_select(0, ids.view(-1)).view(*ids.shape, -1)
            grad_words[part] = torch.bmm(grad[part].unsqueeze(1), gathered).squeeze(1)
            outer = grad[part].unsqueeze(2) * words[part].unsqueeze(1)
            grad_emit.index_add_(0, ids.view(-1), outer.view(-1, emit.shape[1]))
        return grad_words, grad_emit, None


class _PickedCells(torch.autograd.Function):
    """Cells picked from the products of all words with all states. These are Z / K times the work,
    but a GPU does products in bfloat16 many times faster than it gathers V · K vectors.
    """

    @staticmethod
    def forward(ctx: Any, words: Tensor, emit: Tensor, states: Tensor) -> Tensor:
        words, emit = as_operand(words), as_operand(emit)
        ctx.save_for_backward(words, emit, states)
        cells = [
            matmul(words[part], emit.T).gather(1, states[part])
            for part in _chunks(words, len(emit))
        ]
        return torch.cat(cells)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        words, emit, states = ctx.saved_tensors
        grad_words = []
        grad_emit = torch.zeros(emit.shape, dtype=torch.float32, device=emit.device)
        for part in _chunks(words, len(emit)):
            spread = emit.new_zeros(len(states[part]), len(emit))
            spread.scatter_add_(1, states[part], grad[part].to(emit.dtype))
            grad_words.append(matmul(spread, emit))
            grad_emit += matmul(spread.T, words[part])
        return torch.cat(grad_words), grad_emit, None


def _chunks(words: Tensor, cost: int) -> list[slice]:
    """Pieces of the words that may be worked on together, at `cost` numbers each."""
    return memory.pieces(len(words), cost, words.device, memory.STREAMED)
