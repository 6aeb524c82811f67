"""log p(x, z) where the states are known, as in latent variable distillation."""

from __future__ import annotations

import torch
from torch import Tensor

from bighmm.infer.sequences import Sequences
from bighmm.model.model import Model


def log_joint(model: Model, window: Sequences, states: Tensor, before: Tensor) -> Tensor:
    """The terms (B, T) of log p(window, states | the state `before` each row (B,)), differentiable.

    A term is log p(z_t | z_{t-1}) + log p(x_t | z_t), with p(z_t) from the start distribution where
    the window says so. It is 0 in the padding and where z_t is not known (-1); where only z_{t-1}
    is not, its first part is left out.
    """
    batch, time = window.ids.shape
    tokens, after = window.ids.reshape(-1), states.reshape(-1)
    last = torch.cat([before.unsqueeze(1), states[:, :-1]], dim=1).reshape(-1)
    known = window.inside().reshape(-1) & (after >= 0)
    started = model.start.index_select(0, after.clamp(min=0))
    moved = model.transitions.between(last.clamp(min=0), after.clamp(min=0))
    fresh = window.fresh.reshape(-1)
    entered = torch.where(fresh, started, torch.where(last >= 0, moved, 0.0))
    places = model.support.place_of(tokens, after)
    emitted = model.emissions.at(tokens, places.clamp(min=0))
    emitted = torch.where(places >= 0, emitted, -torch.inf)
    return torch.where(known, entered + emitted, 0.0).view(batch, time)
