"""The most likely state path of a sequence."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from bighmm.infer import loops
from bighmm.infer.dense import emitted
from bighmm.infer.potentials import potentials
from bighmm.infer.sequences import Carry, Sequences, in_parts, windows
from bighmm.model.model import Model
from bighmm.model.transitions import Transitions
from bighmm.ops import memory
from bighmm.ops.log_matmul import recentred
from bighmm.ops.table_chain import compiled


class BestPath(NamedTuple):
    states: Tensor  # (B, T), -1 in the padding and where no path is possible
    log_prob: Tensor  # (B,) log p(x, z) of that path


def viterbi(model: Model, sequences: Sequences, impl: str = "auto") -> BestPath:
    """The most likely state path of each row."""
    search = partial(_search_dense, impl=impl) if model.support.is_dense else _search_tiles
    blank = partial(torch.full_like, sequences.ids, -1)
    best, path = in_parts(model, sequences, partial(search, model), blank)
    return BestPath(path, best)


def _search_dense(model: Model, part: Sequences, impl: str) -> tuple[Tensor, Tensor]:
    """log p(x, z) (B,) of the best path, and the path (B, T)."""
    looped = loops.prepare(model, part, impl)
    if looped is not None:
        return compiled().best_path(looped.rows, looped.tables)
    return _search_in_torch(model, part)


@torch.no_grad()
def _search_in_torch(model: Model, part: Sequences) -> tuple[Tensor, Tensor]:
    """The same without compiled loops."""
    batch, time = part.ids.shape
    log_emission = emitted(model.emission, part.ids)
    scores = model.start.new_zeros(batch, model.num_states)
    total = scores.new_zeros(batch, dtype=torch.float64)
    pointers = torch.zeros(log_emission.shape, dtype=torch.int32, device=part.ids.device)
    for t in range(time):
        reached, came_from = _best_sources(model.transitions, scores)
        anew, any_source = scores.max(1, keepdim=True)
        fresh = part.fresh[:, t].unsqueeze(1)
        reached = torch.where(fresh, anew + model.start, reached) + log_emission[:, t]
        pointers[:, t] = torch.where(fresh, any_source, came_from)
        scores = torch.where((t < part.lengths).unsqueeze(1), reached, scores)
        scores, total = recentred(scores, total)
    return _trace_back(model, part, scores, total, pointers)


@torch.no_grad()
def _search_tiles(model: Model, part: Sequences) -> tuple[Tensor, Tensor]:
    """The same with tiles between the states of neighbouring tokens."""
    batch, time = part.ids.shape
    carry = Carry.at_start(model, batch)
    scores = torch.zeros_like(carry.log_alpha)
    total = scores.new_zeros(batch, dtype=torch.float64)
    shape = (batch, time, model.support.states_per_token)
    pointers = torch.zeros(shape, dtype=torch.int32, device=part.ids.device)
    for begin, end in windows(model, batch, time):
        window = part.window(begin, end)
        _, tiles, _ = potentials(model, window, carry)
        for s in range(tiles.shape[1]):
            reached, came_from = (scores.unsqueeze(2) + tiles[:, s]).max(1)
            scores = torch.where((s < window.lengths).unsqueeze(1), reached, scores)
            scores, total = recentred(scores, total)
            pointers[:, begin + s] = came_from
        carry = carry.then(model, window, torch.zeros_like(scores))
    return _trace_back(model, part, scores, total, pointers)


def _trace_back(
    model: Model, part: Sequences, scores: Tensor, total: Tensor, pointers: Tensor
) -> tuple[Tensor, Tensor]:
    """The best path from the last scores (B, K), which are relative to `total` (B,).

    pointers (B, T, K): the place among the states at t - 1 that each state at t is reached from.
    """
    best, within = scores.max(1)
    path = torch.full_like(part.ids, -1)
    states = model.support.states(part.ids)
    possible = best > -torch.inf
    for t in reversed(range(part.ids.shape[1])):
        inside = (t < part.lengths) & possible
        chosen = states[:, t].gather(1, within.unsqueeze(1)).squeeze(1)
        path[:, t] = torch.where(inside, chosen, -1)
        previous = pointers[:, t].gather(1, within.unsqueeze(1)).squeeze(1).long()
        within = torch.where(inside, previous, within)
    return torch.where(part.lengths > 0, (best + total).to(best.dtype), 0.0), path


def _best_sources(transitions: Transitions, scores: Tensor) -> tuple[Tensor, Tensor]:
    """max_i scores_i + log p(j | i) and its i, both (B, Z)."""
    best = torch.full_like(scores, -torch.inf)
    source = torch.zeros(scores.shape, dtype=torch.long, device=scores.device)
    size, device = transitions.num_states, scores.device
    for rows in memory.pieces(size, size, device):
        log_probs = transitions.log_probs(rows)
        for part in memory.pieces(len(scores), log_probs.numel(), device):
            value, place = (log_probs + scores[part, rows].unsqueeze(2)).max(1)
            better = value > best[part]
            best[part] = torch.where(better, value, best[part])
            source[part] = torch.where(better, place + rows.start, source[part])
    return best, source
