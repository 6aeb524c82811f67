"""Sweeps over texts with gaps, from right to left and from left to right.

Rows whose moves are between the same states are moved together. Where known words follow each other
a step is K × K, beside a gap K × Z, and from gap to gap the whole matrix, in pieces.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import torch
from torch import Tensor

from bighmm.infer.numerics import finite_or_zero
from bighmm.infer.predict import token_log_probs
from bighmm.infer.sites import GAP, Site, Sites


class Ahead(NamedTuple):
    """What a row's positions know of what comes, each up to a factor: the largest entry is 1."""

    here: dict[int, Tensor]  # (S,) log p(what is at t, t + 1 … | z_t)
    beyond: dict[int, Tensor]  # (S,) log p(what is at t + 1 … | z_t) after any word but the end
    anew: dict[int, Tensor]  # () the same after an end mark in a gap, up to the same factor
    factor: dict[int, Tensor]  # () the logarithm of what `beyond` was divided by


class Future(NamedTuple):
    rows: list[Ahead]
    log_prob: Tensor  # (B,) log p(known words)


def look_back(sites: Sites, texts: list[list[int]]) -> Future:
    """The sweep from right to left over rows of token ids with GAP in the gaps."""
    zero = sites.hmm.start.new_zeros(())
    rows = [Ahead({}, {}, {}, {}) for _ in texts]
    totals = [zero for _ in texts]
    for t in reversed(range(max(map(len, texts), default=0))):
        inside = [b for b, text in enumerate(texts) if t < len(text)]
        _look_beyond(sites, texts, rows, inside, t)
        for b in inside:
            site, row = sites.at(texts[b][t]), rows[b]
            row.factor[t] = totals[b]
            here = site.log_weight + row.beyond[t]
            if site.log_end is not None:
                here = torch.logaddexp(here, site.log_end + row.anew[t])
            top = finite_or_zero(here.amax())
            row.here[t] = here - top
            totals[b] = totals[b] + top
    for b, text in enumerate(texts):
        if text:
            begin = sites.start(sites.at(text[0])) + rows[b].here[0]
            totals[b] = totals[b] + begin.logsumexp(0)
    return Future(rows, torch.stack(totals) if totals else zero.new_zeros(0))


def step_ahead(
    sites: Sites, before: list[Site], log_alphas: list[Tensor], after: list[Site]
) -> list[Tensor]:
    """log p(z_{t+1}, what was up to t) (S',) of rows that are at `before` with log_alpha (S,)."""
    moving: dict[tuple[int, int], list[int]] = defaultdict(list)
    result: list[Tensor] = [log_alphas[b] for b in range(len(before))]
    for b, (here, there) in enumerate(zip(before, after, strict=True)):
        if here.resets:
            result[b] = sites.start(there) + log_alphas[b].logsumexp(0)
        else:
            moving[here.group, there.group].append(b)
    for together in moving.values():
        here, there = before[together[0]], after[together[0]]
        moved = sites.between(here, there).ahead(torch.stack([log_alphas[b] for b in together]))
        for b, row in zip(together, moved, strict=True):
            result[b] = row
    return result


def words_here(sites: Sites, entered: Tensor, row: Ahead, t: int) -> Tensor:
    """log p(word in the gap at t, known words) (R, V), for log p(z_t, what was before) (R, Z).

    Up to the factor of `row` at t. -inf for the end mark, unless the gap may hold it.
    """
    hmm, gap = sites.hmm, sites.at(GAP)
    found = token_log_probs(hmm, entered + row.beyond[t])
    if hmm.end is not None and gap.log_end is not None:
        found[:, hmm.end] = (entered + gap.log_end).logsumexp(1) + row.anew[t]
    elif hmm.end is not None and not sites.ends:
        found[:, hmm.end] = -torch.inf
    return found


def _look_beyond(
    sites: Sites, texts: list[list[int]], rows: list[Ahead], inside: list[int], t: int
) -> None:
    """What is known at t of what comes after it, from what is known at t + 1."""
    moving: dict[tuple[int, int], list[int]] = defaultdict(list)
    for b in inside:
        site, row = sites.at(texts[b][t]), rows[b]
        if t + 1 == len(texts[b]):
            row.beyond[t] = torch.zeros_like(site.log_weight)
            row.anew[t] = row.beyond[t].new_zeros(())
            continue
        after = sites.at(texts[b][t + 1])
        if site.resets or site.log_end is not None:
            row.anew[t] = (sites.start(after) + row.here[t + 1]).logsumexp(0)
        if site.resets:
            row.beyond[t] = row.anew[t].expand(len(site.states))
        else:
            moving[site.group, after.group].append(b)
    for together in moving.values():
        before, after = (sites.at(texts[together[0]][s]) for s in (t, t + 1))
        message = torch.stack([rows[b].here[t + 1] for b in together])
        moved = sites.between(before, after).back(message)
        for b, beyond in zip(together, moved, strict=True):
            rows[b].beyond[t] = beyond
