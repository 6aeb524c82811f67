"""The state that is carried from one window of text to the next.

`renormalise` puts it on the states that a new dropout mask keeps, `after_window` is what a window
makes of it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bighmm.ops.impl import Impl, use_triton
from bighmm.ops.log_matmul import finite_or_zero

__all__ = ["after_window", "renormalise", "states_of_blocks"]

MOST_COMPARED = 512  # states of a row that the kernel compares one by one


def renormalise(
    states: Tensor, log_alpha: Tensor, kept: Tensor, num_states: int, impl: Impl = "auto"
) -> Tensor:
    """log p (B, K) over the states `kept` (B, K), from log_alpha (B, K') over `states` (B, K').

    Ids are those of the whole model with `num_states`, -1 where there is none. Where none of the
    states that had any weight is kept, all that are kept get the same.
    """
    few = max(states.shape[1], kept.shape[1]) <= MOST_COMPARED
    if few and log_alpha.dtype == torch.float32 and use_triton(log_alpha, impl):
        from bighmm.ops.carry import triton

        return triton.renormalise(states, log_alpha, kept)
    lost = -torch.inf
    whole = log_alpha.new_full((len(states), num_states + 1), lost)
    whole.scatter_(1, torch.where(states >= 0, states, num_states), log_alpha)
    whole[:, num_states].fill_(lost)
    here = kept >= 0
    found = whole.gather(1, torch.where(here, kept, num_states))
    total = found.logsumexp(1, keepdim=True)
    even = torch.where(here, -here.sum(1, keepdim=True).to(found.dtype).log(), lost)
    return torch.where(total > lost, found - total, even)


def after_window(
    ids: Tensor,
    lengths: Tensor,
    log_alpha: Tensor,
    before: tuple[Tensor, Tensor, Tensor],
    end: int | None,
    impl: Impl = "auto",
) -> tuple[Tensor, Tensor, Tensor]:
    """The last token (B,), log p(state) (B, K), and whether a text has ended with it (B,) bool.

    ids (B, T), log_alpha (B, K) at each row's end, up to a factor. A row without tokens keeps what
    there was `before`. end: the token that ends a text, None where none does.
    """
    if log_alpha.dtype == torch.float32 and use_triton(log_alpha, impl):
        from bighmm.ops.carry import triton

        return triton.after_window(ids, lengths, log_alpha, before, -1 if end is None else end)
    last_tokens, last_alpha, last_fresh = before
    empty = lengths == 0
    place = (lengths - 1).clamp(min=0).unsqueeze(1)
    tokens = torch.where(empty, last_tokens, ids.gather(1, place).squeeze(1))
    ended = torch.zeros_like(empty) if end is None else tokens == end
    normalised = log_alpha - finite_or_zero(log_alpha.logsumexp(1, keepdim=True))
    return (
        tokens,
        torch.where(empty.unsqueeze(1), last_alpha, normalised),
        torch.where(empty, last_fresh, ended),
    )


def states_of_blocks(
    tokens: Tensor, block_of: Tensor, kept: Tensor, size: int, impl: Impl = "auto"
) -> Tensor:
    """The ids (B, K) in `kept` (M·K,) of the K = `size` states of each token's (B,) block."""
    if use_triton(tokens, impl):
        from bighmm.ops.carry import triton

        return triton.states_of_blocks(tokens, block_of, kept, size)
    return kept.view(-1, size).index_select(0, block_of.index_select(0, tokens))
