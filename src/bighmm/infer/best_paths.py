"""The k best state paths of a text: Viterbi's recursion with k entries for every state.

Of the ways to reach a state, the k best come from the k sources whose own best entry promises
most: any other source has at most as much to offer as each of these.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from bighmm.infer import loops
from bighmm.infer.positions import Position, PositionCache
from bighmm.infer.sequences import Sequences
from bighmm.model.model import Model
from bighmm.ops import memory
from bighmm.ops.log_matmul import recentred
from bighmm.ops.table_chain import compiled


class BestPaths(NamedTuple):
    states: Tensor  # (B, k, T), best first; -1 in the padding and where there is no further path
    log_prob: Tensor  # (B, k) log p(x, z), -inf where there is no further path


def best_paths(model: Model, sequences: Sequences, k: int, impl: str = "auto") -> BestPaths:
    """The k most likely state paths of each row, best first."""
    looped = loops.prepare(model, sequences, impl)
    if looped is not None:
        best, found = compiled().best_paths(looped.rows, looped.tables, k)
        return BestPaths(found, best)
    batch, time = sequences.ids.shape
    paths = torch.full((batch, k, time), -1, device=sequences.ids.device)
    log_prob = model.start.new_full((batch, k), -torch.inf)
    positions = PositionCache(model, ends=False)
    lengths = sequences.lengths.tolist()
    for b, ids in enumerate(sequences.ids.tolist()):
        text = [positions.at(token) for token in ids[: lengths[b]]]
        found, paths[b, :, : len(text)] = _of_one(positions, text, k)
        log_prob[b, : len(found)] = found
    return BestPaths(paths, log_prob)


def _of_one(positions: PositionCache, text: list[Position], k: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities (≤ k,) and paths (k, T) of one text."""
    start = positions.model.start
    path = torch.full((k, len(text)), -1, device=start.device)
    if not text:
        return start.new_zeros(1), path
    scores = (positions.start(text[0]) + text[0].log_weight).unsqueeze(
        0
    )  # (entries, S), best first
    total = start.new_zeros(1, dtype=torch.float64)
    came_from: list[Tensor] = []  # (entries, S): entry · S' + source, among those one step before
    for before, after in pairwise(text):
        if before.resets:
            reached, origin = _keep(scores.reshape(-1, 1), k)
            reached = reached + positions.start(after)
            origin = origin.expand(-1, len(after.states))
        else:
            reached, origin = _step(positions, before, after, scores, k)
        scores, total = recentred((reached + after.log_weight).unsqueeze(0), total)
        scores = scores.squeeze(0)
        came_from.append(origin)
    best, place = _keep(scores.reshape(-1, 1), k)
    best, place = best.squeeze(1), place.squeeze(1)
    for t in reversed(range(len(text))):
        entry, within = place // len(text[t].states), place % len(text[t].states)
        path[: len(best), t] = text[t].states[within]
        if t > 0:
            place = came_from[t - 1][entry, within]
    path[: len(best)][best == -torch.inf] = -1
    return (best + total).to(best.dtype), path


def _step(
    positions: PositionCache, before: Position, after: Position, scores: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """The k best of scores (E, S) + log p(j | i) and where they are from, both (≤ k, S')."""
    entries, size = scores.shape
    transitions = positions.model.transitions
    kept = min(k, size)
    each = memory.at_once(size + kept * entries, scores.device)
    parts = []
    for columns in after.states.split(each):
        moves = transitions.log_probs(before.index, columns)
        sources = (scores[0].unsqueeze(1) + moves).topk(kept, dim=0).indices  # (kept, C)
        candidates = scores[:, sources] + moves.gather(0, sources)  # (E, kept, C)
        found, place = _keep(candidates.flatten(0, 1), k)
        source = sources.gather(0, place % kept)
        parts.append((found, (place // kept) * size + source))
    found, origin = (torch.cat(tensors, dim=1) for tensors in zip(*parts, strict=True))
    return found, origin


def _keep(candidates: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best of each column, best first, and their rows."""
    best = candidates.topk(min(k, len(candidates)), dim=0)
    return best.values, best.indices
