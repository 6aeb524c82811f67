"""The k best state paths of a text: Viterbi's recursion with k entries for every state.

Of the ways to reach a state, the k best come from the k sources whose own best entry promises
most: any other source has at most as much to offer as each of these.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from bighmm.infer.inputs import CHUNK_ELEMENTS, Sequences
from bighmm.infer.numerics import recentred
from bighmm.infer.sites import Site, Sites

if TYPE_CHECKING:
    from bighmm.hmm import HMM


class BestPaths(NamedTuple):
    states: Tensor  # (B, k, T), best first; -1 in the padding and where there is no further path
    log_prob: Tensor  # (B, k) log p(x, z), -inf where there is no further path


def best_paths(hmm: HMM, sequences: Sequences, k: int) -> BestPaths:
    batch, time = sequences.ids.shape
    paths = torch.full((batch, k, time), -1, device=sequences.ids.device)
    log_prob = hmm.start.new_full((batch, k), -torch.inf)
    sites = Sites(hmm, ends=False)
    lengths = sequences.lengths.tolist()
    for b, ids in enumerate(sequences.ids.tolist()):
        text = [sites.at(token) for token in ids[: lengths[b]]]
        found, paths[b, :, : len(text)] = _of_one(sites, text, k)
        log_prob[b, : len(found)] = found
    return BestPaths(paths, log_prob)


def _of_one(sites: Sites, text: list[Site], k: int) -> tuple[Tensor, Tensor]:
    """Log-probabilities (≤ k,) and paths (k, T) of one text."""
    start = sites.hmm.start
    path = torch.full((k, len(text)), -1, device=start.device)
    if not text:
        return start.new_zeros(1), path
    scores = (sites.start(text[0]) + text[0].log_weight).unsqueeze(0)  # (entries, S), best first
    total = start.new_zeros(1, dtype=torch.float64)
    came_from: list[Tensor] = []  # (entries, S): entry · S' + source, among those one step before
    for before, after in pairwise(text):
        if before.resets:
            reached, origin = _keep(scores.reshape(-1, 1), k)
            reached = reached + sites.start(after)
            origin = origin.expand(-1, len(after.states))
        else:
            reached, origin = _step(sites, before, after, scores, k)
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


def _step(sites: Sites, before: Site, after: Site, scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k best of scores (E, S) + log p(j | i) and where they are from, both (≤ k, S')."""
    entries, size = scores.shape
    transitions = sites.hmm.transitions
    kept = min(k, size)
    each = max(1, CHUNK_ELEMENTS // (size + kept * entries))
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
