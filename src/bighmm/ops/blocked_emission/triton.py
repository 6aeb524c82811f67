"""Emissions inside ragged blocks as Triton kernels: log p(x | z) for the words of z's block.

    φ_xz = words_x · emit_z + bias_x        log p(x | z) = φ_xz − log Σ_{x' in the block} exp φ_x'z

Blocks are cut into pieces of words: one kernel makes the logits of a piece and their sum, another
adds the sums of a block's pieces and normalises. The backward is that of a softmax: with G the
gradient on the result, dφ_xz = G_xz − p(x | z) Σ_x' G_x'z. One kernel runs over the words for the
states' gradient, another over the states for the words'. Operands are bfloat16, sums float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bighmm.ops.partition import Partition
from bighmm.ops.present_blocks import Present

STATES = 64  # states per program


def forward(
    partition: Partition, emit: Tensor, words: Tensor, bias: Tensor, present: Present | None = None
) -> Tensor:
    """log p(x | z) (V, K) for emit (M·K, H), or (S·K, H) with `present`, and words (V, H)."""
    number = partition.num_blocks if present is None else len(present.blocks)
    alive, width = len(emit) // number, emit.shape[1]
    place_of = partition.by_block.first if present is None else present.place_of
    some = present is not None
    table = torch.empty(len(words), alive, dtype=torch.float32, device=emit.device)
    pieces, of_block = partition.by_block.pieces, partition.by_block.pieces_of_block
    norms = torch.empty(len(pieces), alive, dtype=torch.float32, device=emit.device)
    grid = (len(pieces), triton.cdiv(alive, STATES))
    where = (pieces, partition.by_block.tokens, partition.by_block.first)
    _logits[grid](
        *where,
        place_of,
        emit,
        words,
        bias,
        table,
        norms,
        alive,
        width,
        WIDTH=max(16, triton.next_power_of_2(width)),
        TOKENS=partition.by_block.PIECE,
        STATES=STATES,
        SOME=some,
        num_warps=4,
    )
    _normalise[grid](
        *where,
        place_of,
        of_block,
        norms,
        table,
        alive,
        TOKENS=partition.by_block.PIECE,
        STATES=STATES,
        SOME=some,
        num_warps=4,
    )
    return table


def backward(
    partition: Partition,
    emit: Tensor,
    words: Tensor,
    table: Tensor,
    grad: Tensor,
    present: Present | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of emit (M·K, H), words (V, H) and bias (V,), float32; `table` is the result."""
    alive, width = table.shape[1], emit.shape[1]
    of_emit = torch.empty(emit.shape, dtype=torch.float32, device=emit.device)
    some = present is not None
    new = torch.zeros if some else torch.empty  # words of other blocks are left as they are
    of_words = new(words.shape, dtype=torch.float32, device=emit.device)
    of_bias = new(len(words), dtype=torch.float32, device=emit.device)
    totals = torch.empty(len(emit), dtype=torch.float32, device=emit.device)
    by_block = partition.by_block
    shared = {
        "WIDTH": max(16, triton.next_power_of_2(width)),
        "TOKENS": by_block.PIECE,
        "STATES": STATES,
        "SOME": some,
    }
    blocks = by_block.first if present is None else present.blocks
    place_of = by_block.first if present is None else present.place_of
    _states[(len(emit) // alive, triton.cdiv(alive, STATES))](
        by_block.tokens,
        by_block.first,
        blocks,
        words,
        table,
        grad,
        totals,
        of_emit,
        alive,
        width,
        **shared,
        num_warps=8,
    )
    pieces = by_block.pieces
    _words[(len(pieces),)](
        pieces,
        by_block.tokens,
        by_block.first,
        place_of,
        emit,
        table,
        grad,
        totals,
        of_words,
        of_bias,
        alive,
        width,
        **shared,
        num_warps=8,
        num_stages=3 if width <= 256 else 2,  # shared memory has no room for more
    )
    return of_emit, of_words, of_bias


@triton.jit
def _place(block, place_of, SOME: tl.constexpr):
    """Where the states of a block are; below zero if they are not there."""
    place = block
    if SOME:
        place = tl.load(place_of + block).to(tl.int32)
    return place


@triton.jit
def _logits(
    pieces, tokens, first, place_of, emit, words, bias, table, norms, alive, width, WIDTH:
    tl.constexpr, TOKENS: tl.constexpr, STATES: tl.constexpr, SOME: tl.constexpr,
):  # fmt: skip
    piece = tl.program_id(0)
    block = tl.load(pieces + piece * 2)
    place = _place(block, place_of, SOME)
    if place < 0:
        return
    n = tl.load(pieces + piece * 2 + 1) + tl.arange(0, TOKENS)
    end = tl.load(first + block + 1)
    x = tl.load(tokens + n, mask=n < end, other=0)
    k = tl.program_id(1) * STATES + tl.arange(0, STATES)
    h = tl.arange(0, WIDTH)
    of_states = tl.load(
        emit + (place * alive + k)[:, None] * width + h[None, :],
        mask=(k < alive)[:, None] & (h < width)[None, :],
        other=0.0,
    )
    of_words = tl.load(
        words + x[:, None] * width + h[None, :],
        mask=(n < end)[:, None] & (h < width)[None, :],
        other=0.0,
    )
    shift = tl.load(bias + x, mask=n < end, other=-float("inf"))
    logits = tl.dot(of_words, tl.trans(of_states)) + shift[:, None]
    tl.store(
        table + x[:, None] * alive + k[None, :],
        logits,
        mask=(n < end)[:, None] & (k < alive)[None, :],
    )
    top = tl.max(logits, 0)
    norm = top + tl.log(tl.sum(tl.exp(logits - top[None, :]), 0))
    tl.store(norms + piece * alive + k, norm, mask=k < alive)


@triton.jit
def _normalise(
    pieces, tokens, first, place_of, of_block, norms, table, alive, TOKENS: tl.constexpr, STATES:
    tl.constexpr, SOME: tl.constexpr,
):  # fmt: skip
    piece = tl.program_id(0)
    block = tl.load(pieces + piece * 2)
    if _place(block, place_of, SOME) < 0:
        return
    n = tl.load(pieces + piece * 2 + 1) + tl.arange(0, TOKENS)
    inside = n < tl.load(first + block + 1)
    x = tl.load(tokens + n, mask=inside, other=0)
    k = tl.program_id(1) * STATES + tl.arange(0, STATES)
    top = tl.full([STATES], -float("inf"), tl.float32)
    total = tl.zeros([STATES], tl.float32)
    for other in range(tl.load(of_block + block), tl.load(of_block + block + 1)):
        norm = tl.load(norms + other * alive + k, mask=k < alive, other=0.0)
        higher = tl.maximum(top, norm)
        total = total * tl.exp(top - higher) + tl.exp(norm - higher)
        top = higher
    cell = x[:, None] * alive + k[None, :]
    mask = inside[:, None] & (k < alive)[None, :]
    logits = tl.load(table + cell, mask=mask, other=0.0)
    tl.store(table + cell, logits - (top + tl.log(total))[None, :], mask=mask)


@triton.jit
def _states(
    tokens, first, blocks, words, table, grad, totals, of_emit, alive, width, WIDTH: tl.constexpr,
    TOKENS: tl.constexpr, STATES: tl.constexpr, SOME: tl.constexpr,
):  # fmt: skip
    place_of_block = tl.program_id(0)
    block = place_of_block
    if SOME:
        block = tl.load(blocks + place_of_block).to(tl.int32)
    k = tl.program_id(1) * STATES + tl.arange(0, STATES)
    h = tl.arange(0, WIDTH)
    begin, end = tl.load(first + block), tl.load(first + block + 1)
    total = tl.zeros([STATES], tl.float32)
    for place in range(begin, end, TOKENS):
        n = place + tl.arange(0, TOKENS)
        x = tl.load(tokens + n, mask=n < end, other=0)
        inside = (n < end)[:, None] & (k < alive)[None, :]
        total += tl.sum(tl.load(grad + x[:, None] * alive + k[None, :], mask=inside, other=0.0), 0)
    tl.store(totals + place_of_block * alive + k, total, mask=k < alive)
    summed = tl.zeros([STATES, WIDTH], tl.float32)
    for place in range(begin, end, TOKENS):
        n = place + tl.arange(0, TOKENS)
        x = tl.load(tokens + n, mask=n < end, other=0)
        inside = (n < end)[:, None] & (k < alive)[None, :]
        cell = x[:, None] * alive + k[None, :]
        log_prob = tl.load(table + cell, mask=inside, other=-float("inf"))
        of_logits = tl.load(grad + cell, mask=inside, other=0.0)
        of_logits -= tl.exp(log_prob) * total[None, :]
        of_words = tl.load(
            words + x[:, None] * width + h[None, :],
            mask=(n < end)[:, None] & (h < width)[None, :],
            other=0.0,
        )
        summed = tl.dot(tl.trans(of_logits.to(of_words.dtype)), of_words, summed)
    tl.store(
        of_emit + (place_of_block * alive + k)[:, None] * width + h[None, :],
        summed,
        mask=(k < alive)[:, None] & (h < width)[None, :],
    )


@triton.jit
def _words(
    pieces, tokens, first, place_of, emit, table, grad, totals, of_words, of_bias, alive, width,
    WIDTH: tl.constexpr, TOKENS: tl.constexpr, STATES: tl.constexpr, SOME: tl.constexpr,
):  # fmt: skip
    block = tl.load(pieces + tl.program_id(0) * 2)
    place_of_block = _place(block, place_of, SOME)
    if place_of_block < 0:
        return
    n = tl.load(pieces + tl.program_id(0) * 2 + 1) + tl.arange(0, TOKENS)
    end = tl.load(first + block + 1)
    x = tl.load(tokens + n, mask=n < end, other=0)
    h = tl.arange(0, WIDTH)
    summed = tl.zeros([TOKENS, WIDTH], tl.float32)
    total = tl.zeros([TOKENS], tl.float32)
    for place in range(0, alive, STATES):
        k = place + tl.arange(0, STATES)
        inside = (n < end)[:, None] & (k < alive)[None, :]
        cell = x[:, None] * alive + k[None, :]
        log_prob = tl.load(table + cell, mask=inside, other=-float("inf"))
        of_state = tl.load(totals + place_of_block * alive + k, mask=k < alive, other=0.0)
        of_logits = tl.load(grad + cell, mask=inside, other=0.0)
        of_logits -= tl.exp(log_prob) * of_state[None, :]
        of_states = tl.load(
            emit + (place_of_block * alive + k)[:, None] * width + h[None, :],
            mask=(k < alive)[:, None] & (h < width)[None, :],
            other=0.0,
        )
        summed = tl.dot(of_logits.to(of_states.dtype), of_states, summed)
        total += tl.sum(of_logits, 1)
    tl.store(
        of_words + x[:, None] * width + h[None, :],
        summed,
        mask=(n < end)[:, None] & (h < width)[None, :],
    )
    tl.store(of_bias + x, total, mask=n < end)
