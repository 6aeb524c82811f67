"""Smoothing: p(z_t | x_1 … x_T) for the states that can be alive at each position."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bighmm.infer import loops
from bighmm.infer.dense import emitted, windows_of
from bighmm.infer.potentials import potentials
from bighmm.infer.sequences import Carry, Sequences, in_parts, windows
from bighmm.model.model import Model
from bighmm.ops.chain import plain as chain
from bighmm.ops.dense_chain import plain as dense_chain
from bighmm.ops.log_matmul import finite_or_zero
from bighmm.ops.table_chain import compiled


class Posterior(NamedTuple):
    log_prob: Tensor  # (B,) log p(x_1 … x_T)
    states: Tensor  # (B, T, K) ids of the states that could be there, -1 in the padding
    marginals: Tensor  # (B, T, K) p(z_t = state | x_1 … x_T), 0 in the padding and if p(x) = 0


def posterior(model: Model, sequences: Sequences, impl: str = "auto") -> Posterior:
    """p(z_t | x_1 … x_T) for the states that can be alive at each position."""

    def smooth(part: Sequences) -> tuple[Tensor, Tensor]:
        return _smooth_dense(model, part, impl) if support.is_dense else _smooth_tiles(model, part)

    def blank() -> Tensor:
        return model.start.new_zeros(*sequences.ids.shape, support.states_per_token)

    support = model.support
    log_prob, marginals = in_parts(model, sequences, smooth, blank)
    states = support.states(sequences.ids)
    if sequences.ragged:
        states = states.masked_fill(~sequences.inside().unsqueeze(2), -1)
    return Posterior(log_prob, states, marginals)


def _smooth_dense(model: Model, part: Sequences, impl: str) -> tuple[Tensor, Tensor]:
    """log p (B,) and marginals (B, T, Z); zero in the padding and where p is zero."""
    looped = loops.prepare(model, part, impl)
    if looped is not None:
        return compiled().smooth(looped.rows, looped.tables)
    return _smooth_in_torch(model, part)


@torch.no_grad()
def _smooth_in_torch(model: Model, part: Sequences) -> tuple[Tensor, Tensor]:
    """The same without compiled loops."""
    given = windows_of(part, Carry.at_start(model, len(part.ids)))
    move, log_emission = model.transitions.product(), emitted(model.emission, part.ids)
    log_alpha, gained = dense_chain.forward(move.ahead, model.start, log_emission, given)
    joint = log_alpha + dense_chain.backward(move.back, log_emission, given)
    total = gained.sum(1)
    inside = part.inside() & (total > -torch.inf).unsqueeze(1)
    return total, _shares(joint) * inside.unsqueeze(2)


@torch.no_grad()
def _smooth_tiles(model: Model, part: Sequences) -> tuple[Tensor, Tensor]:
    """The same with tiles: forward over windows, keeping log_alpha, then backward over them."""
    batch, time = part.ids.shape
    log_prob = model.start.new_zeros(batch)
    marginals = model.start.new_zeros(batch, time, model.support.states_per_token)
    carry = Carry.at_start(model, batch)
    visited: list[tuple[slice, Sequences, Carry, Tensor]] = []
    for begin, end in windows(model, batch, time):
        window = part.window(begin, end)
        first, tiles, positions = potentials(model, window, carry)
        log_alpha, gained = chain.sweep_forward(first, tiles, positions)
        visited.append((slice(begin, end), window, carry, log_alpha))
        log_prob += gained.sum(1) + log_alpha[:, -1].logsumexp(1)
        carry = carry.then(model, window, log_alpha[:, -1])
    log_beta = torch.zeros_like(carry.log_alpha)
    for place, window, before, log_alpha in reversed(visited):
        _, tiles, positions = potentials(model, window, before)
        log_betas = chain.sweep_backward(tiles, positions, log_beta)
        joint = (log_alpha + log_betas)[:, 1:]
        marginals[:, place] = _shares(joint) * window.inside().unsqueeze(2)
        log_beta = torch.where((window.lengths > 0).unsqueeze(1), log_betas[:, 0], 0.0)
    return log_prob, marginals * (log_prob > -torch.inf).view(-1, 1, 1)


def _shares(joint: Tensor) -> Tensor:
    """exp(joint) (B, T, K) divided by its sum over the states; zero where all of it is -inf."""
    return (joint - finite_or_zero(joint.logsumexp(2, keepdim=True))).exp()
