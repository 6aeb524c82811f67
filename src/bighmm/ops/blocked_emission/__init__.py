"""log p(x | z), normalised over the tokens that z may emit, for the cells of a support only."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bighmm.model.support import Blocked, Dense, Free, Support, some_states
from bighmm.ops import Impl, at_once, operand, product, use_triton

CHUNK_ELEMENTS = 2**22  # numbers alive at once: 16 MiB in float32, and more on a GPU


def factored_emission(
    support: Support, emit: Tensor, words: Tensor, bias: Tensor, impl: Impl = "torch"
) -> Tensor:
    """log p(x | z) (V, K) from logits emit_z · words_x + bias_x; emit (Z, H), words (V, H).

    The forms for GPUs multiply in bfloat16: emit and words must have such values (`rounded`).
    """
    if isinstance(support, Dense):
        return _Columns.apply(torch.addmm(bias.unsqueeze(1), words, emit.T))
    if isinstance(support, Blocked):
        if use_triton(emit, impl):
            return _BlockedTriton.apply(support, emit, words, bias)
        return _blocked(support, emit, words, bias)
    states = some_states(support, torch.arange(support.vocabulary_size, device=emit.device))
    products = _PickedCells if use_triton(emit, impl) else _Cells
    return normalise_cells(support, products.apply(words, emit, states) + bias.unsqueeze(1))


def normalise_cells(support: Support, cells: Tensor) -> Tensor:
    """log p(x | z) (V, K) from one logit per cell (V, K), whatever the support."""
    if isinstance(support, Dense):
        return _Columns.apply(cells)
    states = support.states(torch.arange(support.vocabulary_size, device=cells.device))
    if isinstance(support, Free):
        return _NormaliseFree.apply(cells, states, support.cells)
    flat = states.view(-1)
    top = torch.full((support.num_states,), -torch.inf, dtype=cells.dtype, device=cells.device)
    top = top.scatter_reduce(0, flat, cells.detach().view(-1), "amax")
    shifted = (cells.view(-1) - top.index_select(0, flat)).exp()
    norm = top + torch.zeros_like(top).index_add(0, flat, shifted).log()
    return cells - norm.index_select(0, flat).view(cells.shape)


class _Columns(torch.autograd.Function):
    """cells (V, Z) − log Σ exp over each column.

    log_softmax gives each of some hundred columns to one thread of a GPU, which then walks down
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


class _NormaliseFree(torch.autograd.Function):
    """cells (V, K) − log Σ exp over the cells of the same state; -inf where `states` is -1.

    `places` (Z, W) lists each state's cells, so that sums are gathered and nothing is scattered:
    with state dropout half of the cells have no state, and on a GPU they would all wait for one
    place to be written.
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


def _blocked(support: Blocked, emit: Tensor, words: Tensor, bias: Tensor) -> Tensor:
    """Blocks are ragged: those of similar size share one padded batch of products."""
    layout = support.partition.layout
    emit = emit.view(support.partition.num_blocks, support.alive, -1).index_select(0, layout.blocks)
    tokens = layout.tokens.clamp(min=0)  # gathered once for all groups, so scattered once as well
    words, bias = words.index_select(0, tokens), bias.index_select(0, tokens)
    bias = bias.masked_fill(layout.tokens < 0, -torch.inf)
    sizes = [blocks * width for blocks, width in layout.shapes]
    parts = []
    for (blocks, width), of_words, of_bias, of_emit in zip(
        layout.shapes,
        words.split(sizes),
        bias.split(sizes),
        emit.split([blocks for blocks, _ in layout.shapes]),
        strict=True,
    ):
        logits = torch.baddbmm(
            of_bias.view(blocks, width, 1), of_words.view(blocks, width, -1), of_emit.mT
        )
        parts.append(logits.log_softmax(1).view(-1, support.alive))
    return torch.cat(parts).index_select(0, layout.row_of)


class _BlockedTriton(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, support: Blocked, emit: Tensor, words: Tensor, bias: Tensor) -> Tensor:
        from bighmm.ops import blocked_emission_triton

        ctx.partition = support.partition
        emit, words = operand(emit.contiguous()), operand(words.contiguous())
        table = blocked_emission_triton.forward(ctx.partition, emit, words, bias)
        ctx.save_for_backward(emit, words, table)
        return table

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        from bighmm.ops import blocked_emission_triton

        emit, words, table = ctx.saved_tensors
        return None, *blocked_emission_triton.backward(
            ctx.partition, emit, words, table, grad.contiguous()
        )


class _Cells(torch.autograd.Function):
    """words_x · emit_z for the states z of each token x: (V, K).

    Gathering the state vectors of all cells at once would take V · K · H numbers, so tokens are
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
    """The same, picked from the products of all words with all states.

    These are Z / K times the work, but a GPU does products in bfloat16 many times faster than it
    gathers V · K vectors.
    """

    @staticmethod
    def forward(ctx: Any, words: Tensor, emit: Tensor, states: Tensor) -> Tensor:
        words, emit = operand(words), operand(emit)
        ctx.save_for_backward(words, emit, states)
        cells = [
            product(words[part], emit.T).gather(1, states[part])
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
            grad_words.append(product(spread, emit))
            grad_emit += product(spread.T, words[part])
        return torch.cat(grad_words), grad_emit, None


def _chunks(words: Tensor, cost: int) -> list[slice]:
    """Pieces of the tokens that may be worked on together, at `cost` numbers each."""
    step = max(1, at_once(CHUNK_ELEMENTS, words.device) // cost)
    return [slice(i, i + step) for i in range(0, len(words), step)]
