"""Inference when a token leaves only K of the Z states alive: O(T K²) for a sequence.

Between two tokens lies one K × K tile of transitions. Where a text starts anew the tile's rows are
all the start distribution. The sums over the chain of tiles are `chain`'s; this module makes the
tiles, in windows that fit in memory, and reads the answers.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bighmm.infer import blocked_triton, chain
from bighmm.infer.inputs import Carry, Sequences, in_parts, windows
from bighmm.infer.numerics import finite_or_zero, recentred
from bighmm.ops import use_triton

if TYPE_CHECKING:
    from bighmm.hmm import HMM


def advance(hmm: HMM, window: Sequences, carry: Carry, impl: str = "auto") -> tuple[Tensor, Carry]:
    """log p(window | what came before) (B,), differentiable, and the state after it.

    impl: as in `chain_log_sum`.
    """
    if use_triton(hmm.start, impl) and blocked_triton.fits(hmm):
        return blocked_triton.advance(hmm, window, carry)
    first, tiles, positions = _potentials(hmm, window, carry)
    log_prob, log_alpha = chain.chain_log_sum(first, tiles, positions, impl)
    return log_prob, carry.then(hmm, window, log_alpha.detach())


def posterior(hmm: HMM, sequences: Sequences) -> tuple[Tensor, Tensor]:
    """log p (B,) and p(z_t | x_1 … x_T) (B, T, K); zero in the padding and where p is zero."""
    alive = hmm.support.alive
    log_prob = hmm.start.new_zeros(len(sequences.ids))
    marginals = hmm.start.new_zeros(*sequences.ids.shape, alive)
    return in_parts(sequences, alive**2, partial(_smooth, hmm), (log_prob, marginals))


def viterbi(hmm: HMM, sequences: Sequences) -> tuple[Tensor, Tensor]:
    """Joint log-probability (B,) of the best state path, and the path (B, T).

    The path is -1 in the padding, and where no path is possible.
    """
    best = hmm.start.new_zeros(len(sequences.ids))
    path = torch.full_like(sequences.ids, -1)
    return in_parts(sequences, hmm.support.alive**2, partial(_best_path, hmm), (best, path))


def predict_states(hmm: HMM, carry: Carry) -> Tensor:
    """log p(next state | prefix) (B, Z)."""
    states = hmm.support.states(carry.tokens).clamp(min=0)
    result = []
    for b in range(len(carry.tokens)):
        if bool(carry.fresh[b]):
            result.append(hmm.start)
            continue
        log_rows = hmm.transitions.logits(states[b])  # (K, Z)
        log_weight = carry.log_alpha[b] - hmm.transitions.norm.index_select(0, states[b])
        result.append((log_rows + log_weight.unsqueeze(1)).logsumexp(0))
    return torch.stack(result) if result else hmm.start.new_zeros(0, hmm.num_states)


def _potentials(hmm: HMM, window: Sequences, carry: Carry) -> tuple[Tensor, Tensor, Tensor]:
    """The chain of a window: the carried state is its position 0, then one tile per token."""
    ids = window.ids
    batch, time = ids.shape
    alive = hmm.support.alive
    emission = hmm.emission.index_select(0, ids.reshape(-1)).view(batch, time, 1, alive)
    start = hmm.support.gather(hmm.start, ids.reshape(-1)).view(batch, time, 1, alive)
    before = torch.cat([carry.tokens.unsqueeze(1), ids[:, :-1]], dim=1)[:, :time]
    fresh = window.fresh.clone()
    fresh[:, :1] = carry.fresh.unsqueeze(1)
    moves = hmm.transitions.tiles(hmm.support, before.reshape(-1), ids.reshape(-1))
    moves = moves.view(batch, time, alive, alive)
    tiles = torch.where(fresh.view(batch, time, 1, 1), start, moves).add_(emission)
    return carry.log_alpha, tiles, window.lengths + 1


def _smooth(hmm: HMM, part: Sequences) -> tuple[Tensor, Tensor]:
    """Forward over the windows, keeping log_alpha, then backward over them."""
    batch, time = part.ids.shape
    log_prob = hmm.start.new_zeros(batch)
    marginals = hmm.start.new_zeros(batch, time, hmm.support.alive)
    carry = Carry.at_start(hmm, batch)
    visited: list[tuple[slice, Sequences, Carry, Tensor]] = []
    for begin, end in windows(time, batch, hmm.support.alive**2, part.ids.device):
        window = part.window(begin, end)
        first, tiles, positions = _potentials(hmm, window, carry)
        log_alpha, gained = chain.sweep_forward(first, tiles, positions)
        visited.append((slice(begin, end), window, carry, log_alpha))
        log_prob += gained.sum(1) + log_alpha[:, -1].logsumexp(1)
        carry = carry.then(hmm, window, log_alpha[:, -1])
    log_beta = torch.zeros_like(carry.log_alpha)
    for place, window, before, log_alpha in reversed(visited):
        _, tiles, positions = _potentials(hmm, window, before)
        log_betas = chain.sweep_backward(tiles, positions, log_beta)
        joint = (log_alpha + log_betas)[:, 1:]
        inside = torch.arange(tiles.shape[1], device=tiles.device) < window.lengths.unsqueeze(1)
        probs = (joint - finite_or_zero(joint.logsumexp(2, keepdim=True))).exp()
        marginals[:, place] = probs * inside.unsqueeze(2)
        log_beta = torch.where((window.lengths > 0).unsqueeze(1), log_betas[:, 0], 0.0)
    return log_prob, marginals * (log_prob > -torch.inf).view(-1, 1, 1)


def _best_path(hmm: HMM, part: Sequences) -> tuple[Tensor, Tensor]:
    batch, time = part.ids.shape
    carry = Carry.at_start(hmm, batch)
    scores = torch.zeros_like(carry.log_alpha)
    total = scores.new_zeros(batch, dtype=torch.float64)
    pointers = torch.zeros(
        batch, time, hmm.support.alive, dtype=torch.int32, device=part.ids.device
    )
    for begin, end in windows(time, batch, hmm.support.alive**2, part.ids.device):
        window = part.window(begin, end)
        _, tiles, _ = _potentials(hmm, window, carry)
        for s in range(tiles.shape[1]):
            reached, came_from = (scores.unsqueeze(2) + tiles[:, s]).max(1)
            scores = torch.where((s < window.lengths).unsqueeze(1), reached, scores)
            scores, total = recentred(scores, total)
            pointers[:, begin + s] = came_from
        carry = carry.then(hmm, window, torch.zeros_like(scores))
    best, within = scores.max(1)
    path = torch.full_like(part.ids, -1)
    states = hmm.support.states(part.ids)
    possible = best > -torch.inf
    for t in reversed(range(time)):
        inside = (t < part.lengths) & possible
        chosen = states[:, t].gather(1, within.unsqueeze(1)).squeeze(1)
        path[:, t] = torch.where(inside, chosen, -1)
        previous = pointers[:, t].gather(1, within.unsqueeze(1)).squeeze(1).long()
        within = torch.where(inside, previous, within)
    return torch.where(part.lengths > 0, (best + total).to(best.dtype), 0.0), path
