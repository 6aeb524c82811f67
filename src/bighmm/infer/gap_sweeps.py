"""Sweeps over texts with gaps, from right to left and from left to right.

Rows whose moves are between the same states are moved together. Where known words follow each other
a step is K × K, beside a gap K × Z, and from gap to gap the whole matrix, in pieces.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import torch
from torch import Tensor

from bighmm.infer.positions import GAP, Position, PositionCache
from bighmm.ops.log_matmul import finite_or_zero


class SuffixSums(NamedTuple):
    """log p(suffix | z_t) of one row by position, each scaled so that its largest entry is 1."""

    here: dict[int, Tensor]  # (S,) log p(what stands at t, t + 1 … | z_t)
    beyond: dict[int, Tensor]  # (S,) log p(what stands at t + 1 … | z_t), if no text ends at t
    anew: dict[int, Tensor]  # () the same after an end mark in a gap, up to the same factor
    factor: dict[int, Tensor]  # () the logarithm of what `beyond` was divided by


class BackwardSweep(NamedTuple):
    rows: list[SuffixSums]
    log_prob: Tensor  # (B,) log p(known words)


def sweep_back(positions: PositionCache, texts: list[list[int]]) -> BackwardSweep:
    """The sweep from right to left over rows of token ids with GAP in the gaps."""
    zero = positions.model.start.new_zeros(())
    rows = [SuffixSums({}, {}, {}, {}) for _ in texts]
    totals = [zero for _ in texts]
    for t in reversed(range(max(map(len, texts), default=0))):
        inside = [b for b, text in enumerate(texts) if t < len(text)]
        _sums_beyond(positions, texts, rows, inside, t)
        for b in inside:
            position, row = positions.at(texts[b][t]), rows[b]
            row.factor[t] = totals[b]
            here = position.log_weight + row.beyond[t]
            if position.log_end is not None:
                here = torch.logaddexp(here, position.log_end + row.anew[t])
            top = finite_or_zero(here.amax())
            row.here[t] = here - top
            totals[b] = totals[b] + top
    for b, text in enumerate(texts):
        if text:
            begin = positions.start(positions.at(text[0])) + rows[b].here[0]
            totals[b] = totals[b] + begin.logsumexp(0)
    return BackwardSweep(rows, torch.stack(totals) if totals else zero.new_zeros(0))


def step_forward(
    positions: PositionCache,
    before: list[Position],
    log_alphas: list[Tensor],
    after: list[Position],
) -> list[Tensor]:
    """log p(z_{t+1}, prefix) (S',) of rows that are at `before` with log p(z_t, prefix) (S,)."""
    moving: dict[tuple[int, int], list[int]] = defaultdict(list)
    result: list[Tensor] = [log_alphas[b] for b in range(len(before))]
    for b, (here, there) in enumerate(zip(before, after, strict=True)):
        if here.resets:
            result[b] = positions.start(there) + log_alphas[b].logsumexp(0)
        else:
            moving[here.group, there.group].append(b)
    for together in moving.values():
        here, there = before[together[0]], after[together[0]]
        moved = positions.between(here, there).ahead(torch.stack([log_alphas[b] for b in together]))
        for b, row in zip(together, moved, strict=True):
            result[b] = row
    return result


def gap_words(positions: PositionCache, entered: Tensor, row: SuffixSums, t: int) -> Tensor:
    """log p(word in the gap at t, known words) (R, V), for log p(z_t, prefix) (R, Z).

    It is scaled by the factor of `row` at t, and -inf for the end mark unless the gap may hold it.
    """
    model, gap = positions.model, positions.at(GAP)
    log_states = entered + row.beyond[t]
    found = model.support.token_log_probs(model.emissions, log_states)
    if model.end is not None and gap.log_end is not None:
        found[:, model.end] = (entered + gap.log_end).logsumexp(1) + row.anew[t]
    elif model.end is not None and not positions.ends:
        found[:, model.end] = -torch.inf
    return found


def _sums_beyond(
    positions: PositionCache,
    texts: list[list[int]],
    rows: list[SuffixSums],
    inside: list[int],
    t: int,
) -> None:
    """Compute `beyond` and `anew` at t from `here` at t + 1."""
    moving: dict[tuple[int, int], list[int]] = defaultdict(list)
    for b in inside:
        position, row = positions.at(texts[b][t]), rows[b]
        if t + 1 == len(texts[b]):
            row.beyond[t] = torch.zeros_like(position.log_weight)
            row.anew[t] = row.beyond[t].new_zeros(())
            continue
        after = positions.at(texts[b][t + 1])
        if position.resets or position.log_end is not None:
            row.anew[t] = (positions.start(after) + row.here[t + 1]).logsumexp(0)
        if position.resets:
            row.beyond[t] = row.anew[t].expand(len(position.states))
        else:
            moving[position.group, after.group].append(b)
    for together in moving.values():
        before, after = (positions.at(texts[together[0]][s]) for s in (t, t + 1))
        message = torch.stack([rows[b].here[t + 1] for b in together])
        moved = positions.between(before, after).back(message)
        for b, beyond in zip(together, moved, strict=True):
            rows[b].beyond[t] = beyond
