"""A carried distribution over states, renormalised over those that a new dropout mask keeps."""

from __future__ import annotations

import torch
from torch import Tensor

from bighmm.ops.impl import Impl, use_triton

__all__ = ["renormalise"]

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
