"""log p(x | z), normalised over the tokens that z may emit, for the cells of a support only."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bighmm.kernels import Impl, operand, use_triton
from bighmm.support import Blocked, Dense, Support

CHUNK_ELEMENTS = 2**22  # gathered numbers alive at once: 16 MiB in float32


def factored_emission(
    support: Support, emit: Tensor, words: Tensor, bias: Tensor, impl: Impl = "torch"
) -> Tensor:
    """log p(x | z) (V, K) from logits emit_z · words_x + bias_x; emit (Z, H), words (V, H).

    The Triton form multiplies in bfloat16: emit and words must have such values (`rounded`).
    """
    if isinstance(support, Dense):
        return torch.addmm(bias.unsqueeze(1), words, emit.T).log_softmax(0)
    if isinstance(support, Blocked):
        if use_triton(emit, impl):
            return _BlockedTriton.apply(support, emit, words, bias)
        return _blocked(support, emit, words, bias)
    states = support.states(torch.arange(support.vocabulary_size, device=emit.device))
    cells = _Cells.apply(words, emit, states.clamp(min=0)) + bias.unsqueeze(1)
    return normalise_cells(support, cells)


def normalise_cells(support: Support, cells: Tensor) -> Tensor:
    """log p(x | z) (V, K) from one logit per cell (V, K), whatever the support."""
    if isinstance(support, Dense):
        return cells.log_softmax(0)
    states = support.states(torch.arange(support.vocabulary_size, device=cells.device))
    absent = states < 0
    flat = states.clamp(min=0).view(-1)
    cells = cells.masked_fill(absent, -torch.inf)
    top = torch.full((support.num_states,), -torch.inf, dtype=cells.dtype, device=cells.device)
    top = top.scatter_reduce(0, flat, cells.detach().view(-1), "amax")
    shifted = (cells.view(-1) - top.index_select(0, flat)).exp()
    norm = top + torch.zeros_like(top).index_add(0, flat, shifted).log()
    return cells - norm.index_select(0, flat).view(cells.shape)


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
        from bighmm.kernels import blocked_emission_triton

        ctx.partition = support.partition
        emit, words = operand(emit.contiguous()), operand(words.contiguous())
        table = blocked_emission_triton.forward(ctx.partition, emit, words, bias)
        ctx.save_for_backward(emit, words, table)
        return table

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        from bighmm.kernels import blocked_emission_triton

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
        for part in _chunks(words, states):
            gathered = emit.index_select(0, states[part].view(-1)).view(*states[part].shape, -1)
            cells[part] = torch.bmm(gathered, words[part].unsqueeze(2)).squeeze(2)
        return cells

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        words, emit, states = ctx.saved_tensors
        grad_words, grad_emit = torch.empty_like(words), torch.zeros_like(emit)
        for part in _chunks(words, states):
            ids = states[part]
            gathered = emit.index_select(0, ids.view(-1)).view(*ids.shape, -1)
            grad_words[part] = torch.bmm(grad[part].unsqueeze(1), gathered).squeeze(1)
            outer = grad[part].unsqueeze(2) * words[part].unsqueeze(1)
            grad_emit.index_add_(0, ids.view(-1), outer.view(-1, emit.shape[1]))
        return grad_words, grad_emit, None


def _chunks(words: Tensor, states: Tensor) -> list[slice]:
    step = max(1, CHUNK_ELEMENTS // (states.shape[1] * words.shape[1]))
    return [slice(i, i + step) for i in range(0, len(words), step)]
