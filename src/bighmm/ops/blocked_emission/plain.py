"""Emissions inside blocks, in torch."""

from __future__ import annotations

import torch
from torch import Tensor

from bighmm.ops.partition import Partition
from bighmm.ops.present_blocks import Present


def blocked_emission(partition: Partition, emit: Tensor, words: Tensor, bias: Tensor) -> Tensor:
    """log p(x | z) (V, K). Blocks are ragged: those of similar size share one padded batch."""
    layout = partition.layout
    states = len(emit) // partition.num_blocks
    emit = emit.view(partition.num_blocks, states, -1).index_select(0, layout.blocks)
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


def some_emission(
    partition: Partition, emit: Tensor, words: Tensor, bias: Tensor, present: Present
) -> Tensor:
    """The same for some blocks, with emit (S·K, H); rows of words of other blocks are undefined."""
    layout = partition.layout
    states = len(emit) // len(present.blocks)
    emit = emit.view(len(present.blocks), states, -1)
    places = present.place_of.index_select(0, layout.blocks)
    row_of = torch.zeros_like(partition.block_of)
    parts, done = [], 0
    tokens_of = layout.tokens.split([blocks * width for blocks, width in layout.shapes])
    for (blocks, width), place, tokens in zip(
        layout.shapes,
        places.split([blocks for blocks, _ in layout.shapes]),
        tokens_of,
        strict=True,
    ):
        here = torch.nonzero(place >= 0).squeeze(1)
        if len(here) == 0:
            continue
        tokens = tokens.view(blocks, width).index_select(0, here)
        real = tokens.clamp(min=0).view(-1)
        of_bias = bias.index_select(0, real).view(-1, width, 1)
        of_bias = of_bias.masked_fill((tokens < 0).unsqueeze(2), -torch.inf)
        of_words = words.index_select(0, real).view(len(here), width, -1)
        of_emit = emit.index_select(0, place.index_select(0, here))
        logits = torch.baddbmm(of_bias, of_words, of_emit.mT)
        parts.append(logits.log_softmax(1).view(-1, states))
        filled = torch.nonzero(tokens.view(-1) >= 0).squeeze(1)
        row_of.index_copy_(0, tokens.view(-1).index_select(0, filled), filled + done)
        done += tokens.numel()
    return torch.cat(parts).index_select(0, row_of)
