"""The blocks of some tokens, counted by one program, and the places of all words."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

WORDS = 1024  # per program


def present_blocks(
    block_of: Tensor, tokens: Tensor, num_blocks: int, count: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The blocks (S,), the place of every block (M,) and of every word's block (V,)."""
    device = block_of.device
    blocks = torch.empty(count, dtype=torch.long, device=device)
    place_of = torch.empty(num_blocks, dtype=torch.long, device=device)
    places = torch.empty_like(block_of)
    padded = max(32, triton.next_power_of_2(num_blocks))
    _find[(1,)](
        block_of,
        tokens.contiguous(),
        blocks,
        place_of,
        tokens.numel(),
        num_blocks,
        count,
        TOKENS=triton.next_power_of_2(max(1, tokens.numel())),
        BLOCKS=padded,
        num_warps=4 if padded <= 1024 else 16,
    )
    number = len(block_of)
    _place_words[(triton.cdiv(number, WORDS),)](
        block_of, place_of, places, number, WORDS=WORDS, num_warps=4
    )
    return blocks, place_of, places


@triton.jit
def _find(
    block_of, tokens, blocks, place_of, number, num_blocks, count, TOKENS: tl.constexpr, BLOCKS:
    tl.constexpr,
):  # fmt: skip
    """Flags are kept where the places go in the end; one program sees its own writes."""
    m = tl.arange(0, BLOCKS)
    n = tl.arange(0, TOKENS)
    inside = m < num_blocks
    tl.store(place_of + m, tl.zeros([BLOCKS], tl.int64), mask=inside)
    tl.debug_barrier()
    token = tl.load(tokens + n, mask=n < number, other=0)
    block = tl.load(block_of + token, mask=n < number, other=0)
    tl.store(place_of + block, tl.full([TOKENS], 1, tl.int64), mask=n < number)
    tl.debug_barrier()
    here = tl.load(place_of + m, mask=inside, other=0).to(tl.int32)
    before = tl.cumsum(here, 0)
    total = tl.sum(here, 0)
    place = tl.where(here > 0, before - 1, total + m - before)
    tl.store(blocks + place, m.to(tl.int64), mask=inside & (place < count))
    tl.debug_barrier()
    tl.store(place_of + m, tl.where(place < count, place, -1).to(tl.int64), mask=inside)


@triton.jit
def _place_words(block_of, place_of, places, number, WORDS: tl.constexpr):
    w = tl.program_id(0) * WORDS + tl.arange(0, WORDS)
    block = tl.load(block_of + w, mask=w < number, other=0)
    place = tl.load(place_of + block, mask=w < number, other=0)
    tl.store(places + w, tl.maximum(place, 0), mask=w < number)
