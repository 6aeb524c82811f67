"""log p(x, z) where the states are known, as in latent variable distillation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bighmm.infer.inputs import Sequences
from bighmm.model.support import Blocked, Dense, Support

if TYPE_CHECKING:
    from bighmm.hmm import HMM


def log_joint(hmm: HMM, window: Sequences, states: Tensor, before: Tensor) -> Tensor:
    """The terms (B, T) of log p(window, states | the state `before` each row (B,)), differentiable.

    A term is log p(z_t | z_{t-1}) + log p(x_t | z_t), with p(z_t) from the start distribution where
    the window says so. It is 0 in the padding and where z_t is not known (-1); where only z_{t-1}
    is not, its first part is left out.
    """
    batch, time = window.ids.shape
    tokens, after = window.ids.reshape(-1), states.reshape(-1)
    last = torch.cat([before.unsqueeze(1), states[:, :-1]], dim=1).reshape(-1)
    inside = torch.arange(time, device=tokens.device) < window.lengths.unsqueeze(1)
    known = inside.reshape(-1) & (after >= 0)
    fresh = window.fresh.reshape(-1)
    started = hmm.start.index_select(0, after.clamp(min=0))
    moved = hmm.transitions.between(last.clamp(min=0), after.clamp(min=0))
    entered = torch.where(fresh, started, torch.where(last >= 0, moved, 0.0))
    places = places_of(hmm.support, tokens, after)
    emitted = hmm.emissions.at(tokens, places.clamp(min=0))
    emitted = torch.where(places >= 0, emitted, -torch.inf)
    return torch.where(known, entered + emitted, 0.0).view(batch, time)


def places_of(support: Support, tokens: Tensor, states: Tensor) -> Tensor:
    """Where each state (N,) stands among the K states of its token (N,); -1 where it does not."""
    if isinstance(support, Dense):
        return states
    if isinstance(support, Blocked):
        place = states - support.partition.block_of.index_select(0, tokens) * support.alive
        return torch.where((place >= 0) & (place < support.alive) & (states >= 0), place, -1)
    same = (support.states(tokens) == states.unsqueeze(1)) & (states >= 0).unsqueeze(1)
    return torch.where(same.any(1), same.to(torch.uint8).argmax(1), -1)
