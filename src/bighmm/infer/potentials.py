"""The chain of potentials of a window: one K × K tile of log-probabilities between two tokens.

Where a text starts anew every row of the tile is the start distribution.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bighmm.infer.sequences import Carry, Sequences
from bighmm.model.model import Model


class Potentials(NamedTuple):
    """What `ops.chain` sums over: the carried state at position 0, then one tile per token."""

    first: Tensor  # (B, K)
    tiles: Tensor  # (B, T, K, K)
    positions: Tensor  # (B,) how many positions each row has, at least 1


def emitted(model: Model, window: Sequences) -> Tensor:
    """log p(x_t | z_t) (B, T, K) for the states of each token; 0 where the token is hidden."""
    batch, time = window.ids.shape
    found = model.emissions.of(window.ids.reshape(-1))
    found = found.view(batch, time, found.shape[1])
    if window.hidden is None:
        return found
    possible = torch.zeros((), dtype=found.dtype, device=found.device)
    if model.support.partition is None:  # a list may be filled up with what is no state of it
        possible = torch.where(model.support.states(window.ids) >= 0, 0.0, -torch.inf).to(found)
    return torch.where(window.hidden.unsqueeze(2), possible, found)


def potentials(model: Model, window: Sequences, carry: Carry) -> Potentials:
    """log p(z_t, x_t | z_{t-1}) for the states of neighbouring tokens; differentiable."""
    ids = window.ids
    batch, time = ids.shape
    size = model.support.states_per_token
    flat = ids.reshape(-1)
    emission = emitted(model, window).unsqueeze(2)
    start = model.support.gather(model.start, flat).view(batch, time, 1, size)
    before = torch.cat([carry.tokens.unsqueeze(1), ids[:, :-1]], dim=1)[:, :time]
    fresh = window.fresh.clone()
    fresh[:, :1] = carry.fresh.unsqueeze(1)
    moves = model.transitions.tiles(model.support, before.reshape(-1), flat)
    moves = moves.view(batch, time, size, size)
    tiles = torch.where(fresh.view(batch, time, 1, 1), start, moves).add_(emission)
    return Potentials(carry.log_alpha, tiles, window.lengths + 1)
