"""Emissions inside ragged blocks as Triton kernels: log p(x | z) for the words of z's block.

    φ_xz = words_x · emit_z + bias_x        log p(x | z) = φ_xz − log Σ_{x' in the block} exp φ_x'z

Blocks are cut into pieces of words: one kernel makes the logits of a piece and their sum, another
adds the sums of a block's pieces and normalises. The backward is that of a softmax: with G the
gradient on the result, dφ_xz = G_xz − p(x | z) Σ_x' G_x'z. One kernel sums G over a block's words,
another makes the gradients of a piece's words and adds to those of the states. Operands are
bfloat16, sums float32.
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
    some = present is not None
    of_emit = torch.zeros(emit.shape, dtype=torch.float32, device=emit.device)
    of_words = torch.empty(words.shape, dtype=torch.float32, device=emit.device)
    of_bias = torch.empty(len(words), dtype=torch.float32, device=emit.device)
    totals = torch.zeros(len(emit), dtype=torch.float32, device=emit.device)
    by_block = partition.by_block
    pieces = by_block.pieces
    place_of = by_block.first if present is None else present.place_of
    where = (pieces, by_block.tokens, by_block.first, place_of)
    states = STATES if width <= 256 else STATES // 2  # shared memory has no room for more
    shared = {"TOKENS": by_block.PIECE, "STATES": states, "SOME": some}
    _totals[(len(pieces), triton.cdiv(alive, states))](
        *where, grad, totals, alive, **shared, num_warps=4
    )
    _gradients[(len(pieces),)](
        *where,
        emit,
        words,
        table,
        grad,
        totals,
        of_emit,
        of_words,
        of_bias,
        alive,
        width,
        **shared,
        WIDTH=max(16, triton.next_power_of_2(width)),
        num_warps=8,
        num_stages=2 if width <= 256 else 1,
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
def _totals(
    pieces, tokens, first, place_of, grad, totals, alive, TOKENS: tl.constexpr, STATES:
    tl.constexpr, SOME: tl.constexpr,
):  # fmt: skip
    """The gradient summed over the words of a block, for each of its states."""
    piece = tl.program_id(0)
    block = tl.load(pieces + piece * 2)
    place = _place(block, place_of, SOME)
    if place < 0:
        return
    n = tl.load(pieces + piece * 2 + 1) + tl.arange(0, TOKENS)
    end = tl.load(first + block + 1)
    x = tl.load(tokens + n, mask=n < end, other=0)
    k = tl.program_id(1) * STATES + tl.arange(0, STATES)
    inside = (n < end)[:, None] & (k < alive)[None, :]
    given = tl.load(grad + x[:, None] * alive + k[None, :], mask=inside, other=0.0)
    tl.atomic_add(totals + place * alive + k, tl.sum(given, 0), mask=k < alive, sem="relaxed")


@triton.jit
def _gradients(
    pieces, tokens, first, place_of, emit, words, table, grad, totals, of_emit, of_words, of_bias,
    alive, width, TOKENS: tl.constexpr, STATES: tl.constexpr, SOME: tl.constexpr, WIDTH:
    tl.constexpr,
):  # fmt: skip
    """A piece of words: their own gradients, and what they add to those of the block's states."""
    piece = tl.program_id(0)
    block = tl.load(pieces + piece * 2)
    place = _place(block, place_of, SOME)
    n = tl.load(pieces + piece * 2 + 1) + tl.arange(0, TOKENS)
    end = tl.load(first + block + 1)
    x = tl.load(tokens + n, mask=n < end, other=0)
    h = tl.arange(0, WIDTH)
    in_words = (n < end)[:, None] & (h < width)[None, :]
    if place < 0:  # words of other blocks have no gradient
        nothing = tl.zeros([TOKENS, WIDTH], tl.float32)
        tl.store(of_words + x[:, None] * width + h[None, :], nothing, mask=in_words)
        tl.store(of_bias + x, tl.zeros([TOKENS], tl.float32), mask=n < end)
        return
    vectors = tl.load(words + x[:, None] * width + h[None, :], mask=in_words, other=0.0)
    summed = tl.zeros([TOKENS, WIDTH], tl.float32)
    total = tl.zeros([TOKENS], tl.float32)
    for start in range(0, alive, STATES):
        k = start + tl.arange(0, STATES)
        inside = (n < end)[:, None] & (k < alive)[None, :]
        cell = x[:, None] * alive + k[None, :]
        log_prob = tl.load(table + cell, mask=inside, other=-float("inf"))
        of_state = tl.load(totals + place * alive + k, mask=k < alive, other=0.0)
        of_logits = tl.load(grad + cell, mask=inside, other=0.0)
        of_logits -= tl.exp(log_prob) * of_state[None, :]
        total += tl.sum(of_logits, 1)
        of_logits = of_logits.to(vectors.dtype)
        row = (place * alive + k)[:, None] * width + h[None, :]
        in_states = (k < alive)[:, None] & (h < width)[None, :]
        of_states = tl.load(emit + row, mask=in_states, other=0.0)
        summed = tl.dot(of_logits, of_states, summed)
        part = tl.dot(tl.trans(of_logits), vectors)
        tl.atomic_add(of_emit + row, part, mask=in_states, sem="relaxed")
    tl.store(of_words + x[:, None] * width + h[None, :], summed, mask=in_words)
    tl.store(of_bias + x, total, mask=n < end)
