"""Emissions inside blocks, in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from bighmm.ops.partition import Layout


def blocked_emission(layout: Layout, emit: Tensor, words: Tensor, bias: Tensor) -> Tensor:
    """log p(x | z) (V, K). Blocks are ragged: those of similar size share one padded batch."""
    states = len(emit) // len(layout.blocks)
    emit = emit.view(len(layout.blocks), states, -1).index_select(0, layout.blocks)
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
        parts.append(logits.log_softmax(1).view(-1, states))
    return torch.cat(parts).index_select(0, layout.row_of)
