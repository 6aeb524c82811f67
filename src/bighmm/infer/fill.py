"""Gaps in a text: exact samples and exact probabilities of what stands there.

    p(gaps | known words) = Σ_z p(z_1) Π_t p(z_t | z_{t-1}) p(x_t | z_t) / p(known words)

One sweep from right to left gives p(known words from t on | z_t), with which states and words are
drawn from left to right; a second sweep, the other way, gives the probabilities of single words.
`positions` says what a position is, `gap_sweeps` has the sweeps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bighmm.base.arrays import as_tensor, without_mask
from bighmm.infer.gap_sweeps import BackwardSweep, SuffixSums, gap_words, step_forward, sweep_back
from bighmm.infer.positions import GAP, Position, PositionCache
from bighmm.infer.sample import log_moves
from bighmm.infer.sequences import (
    Sequences,
    batches_by_length,
    ends_text,
    rectangular,
    validate,
)
from bighmm.model.model import Model
from bighmm.ops import memory
from bighmm.ops.drawing import draw
from bighmm.ops.log_matmul import finite_or_zero


class FillProbs(NamedTuple):
    words: Tensor  # (gaps, V) log p(word in the gap | known words), in the order of torch.nonzero
    log_prob: Tensor  # (B,) log p(known words)


class Gapped(NamedTuple):
    """Sequences with gaps; the ids there are 0 and mean nothing."""

    sequences: Sequences
    gaps: Tensor  # (B, T) bool

    def texts(self, rows: Iterable[int]) -> list[list[int]]:
        """Token ids of some rows up to their lengths, with GAP in the gaps."""
        ids = self.sequences.ids.masked_fill(self.gaps, GAP).tolist()
        lengths = self.sequences.lengths.tolist()
        return [ids[b][: lengths[b]] for b in rows]


def validate_gaps(model: Model, tokens: Any, lengths: Any) -> Gapped:
    """Token ids (B, T) with -1 or a mask of NumPy in the gaps, checked as `validate` does."""
    tokens, lengths = rectangular(without_mask(tokens, GAP), lengths)
    tokens = as_tensor(tokens).to(model.start.device)
    sequences = validate(model, tokens.masked_fill(tokens == GAP, 0), lengths)
    inside = torch.arange(sequences.ids.shape[1], device=tokens.device)
    return Gapped(sequences, (tokens == GAP) & (inside < sequences.lengths.unsqueeze(1)))


def fill(
    model: Model, gapped: Gapped, n: int, ends: bool, generator: torch.Generator | None
) -> Tensor:
    """n samples (B, n, T) of every row, -1 in the padding.

    Raises ValueError if the known words of a row have probability zero.
    """
    ids = gapped.sequences.ids
    result = torch.full((len(ids), n, ids.shape[1]), -1, device=ids.device)
    positions = PositionCache(model, ends)
    for chosen in batches_by_length(gapped.sequences.lengths, model.num_states):
        texts = gapped.texts(chosen.tolist())
        swept = sweep_back(positions, texts)
        impossible = torch.nonzero(swept.log_prob == -torch.inf).squeeze(1)
        if len(impossible):
            raise ValueError(
                f"the known tokens of row {int(chosen[impossible[0]])} have probability zero in "
                "this HMM, so nothing fits its gaps"
            )
        drawn = _draw(positions, texts, swept, n, generator)
        result[chosen, :, : drawn.shape[2]] = drawn
    return result


def fill_probs(model: Model, gapped: Gapped, ends: bool) -> FillProbs:
    """-inf for every word of a gap, and for its row, where the known words have probability 0."""
    gaps = torch.nonzero(gapped.gaps)
    number = {place: i for i, place in enumerate(map(tuple, gaps.tolist()))}
    words = model.start.new_empty(len(gaps), model.vocabulary_size)
    log_prob = model.start.new_zeros(len(gapped.gaps))
    positions = PositionCache(model, ends)
    for chosen in batches_by_length(gapped.sequences.lengths, model.num_states):
        texts = gapped.texts(chosen.tolist())
        swept = sweep_back(positions, texts)
        log_prob[chosen] = swept.log_prob
        for (b, t), found in _gap_words(positions, texts, swept):
            words[number[int(chosen[b]), t]] = found
    return FillProbs(words, log_prob)


def known_log_prob(model: Model, gapped: Gapped, ends: bool) -> Tensor:
    """log p(known words) (B,), the gaps summed out."""
    result = model.start.new_zeros(len(gapped.gaps))
    positions = PositionCache(model, ends)
    for chosen in batches_by_length(gapped.sequences.lengths, model.num_states):
        result[chosen] = sweep_back(positions, gapped.texts(chosen.tolist())).log_prob
    return result


def _draw(
    positions: PositionCache,
    texts: list[list[int]],
    swept: BackwardSweep,
    n: int,
    generator: torch.Generator | None,
) -> Tensor:
    """Token ids (B, n, T): the known ones, and in the gaps what is drawn from left to right."""
    device = positions.model.start.device
    result = torch.full((len(texts), n, max(map(len, texts), default=0)), -1, device=device)
    for b, text in enumerate(texts):
        result[b, :, : len(text)] = torch.tensor(text, dtype=torch.long, device=device)
    states = torch.zeros(len(texts), n, dtype=torch.long, device=device)
    fresh = torch.ones_like(states, dtype=torch.bool)
    for t in range(max(map(last_gap, texts), default=-1) + 1):
        together: dict[int, list[int]] = defaultdict(list)
        for b, text in enumerate(texts):
            if t <= last_gap(text):
                together[positions.at(text[t]).group].append(b)
        for rows in together.values():
            position = positions.at(texts[rows[0]][t])
            ahead = torch.stack([swept.rows[b].here[t] for b in rows])
            states[rows] = _draw_states(
                positions, position, states[rows], fresh[rows], ahead, generator
            )
        for b, text in enumerate(texts):
            if t < len(text) and text[t] == GAP:
                result[b, :, t] = _draw_words(positions, states[b], swept.rows[b], t, generator)
        fresh = ends_text(positions.model, result[:, :, t])
    return result


def _draw_states(
    positions: PositionCache,
    position: Position,
    states: Tensor,
    fresh: Tensor,
    ahead: Tensor,
    generator: torch.Generator | None,
) -> Tensor:
    """The next states (R, n), at `position`, after `states` (R, n), given what is ahead (R, S)."""
    row_of = torch.arange(len(states), device=states.device).unsqueeze(1).expand_as(states)
    drawn = []
    pairs = torch.arange(states.numel(), device=states.device)
    for some in pairs.split(memory.at_once(len(position.states), pairs.device)):
        source, anew = states.reshape(-1)[some], fresh.reshape(-1)[some]
        moves = log_moves(positions.model, source, anew, position.index)
        drawn.append(draw(moves + ahead[row_of.reshape(-1)[some]], generator))
    return position.states[torch.cat(drawn)].view(states.shape)


def _draw_words(
    positions: PositionCache,
    states: Tensor,
    row: SuffixSums,
    t: int,
    generator: torch.Generator | None,
) -> Tensor:
    """Words (n,) of the gap at t, which is in `states` (n,)."""
    model, gap = positions.model, positions.at(GAP)
    drawn = []
    for some in states.split(memory.at_once(model.vocabulary_size, states.device)):
        log_probs = model.support.emission_rows(model.emission, some).clone()
        if model.end is not None and gap.log_end is not None:
            log_probs += row.beyond[t][some].unsqueeze(1)
            log_probs[:, model.end] = gap.log_end[some] + row.anew[t]
        elif model.end is not None and not positions.ends:
            log_probs[:, model.end] = -torch.inf
        drawn.append(draw(log_probs, generator))
    return torch.cat(drawn)


def last_gap(text: list[int]) -> int:
    """Where the last gap of a text is; -1 if it has none."""
    return max((t for t, token in enumerate(text) if token == GAP), default=-1)


def _gap_words(
    positions: PositionCache, texts: list[list[int]], swept: BackwardSweep
) -> Iterable[tuple[tuple[int, int], Tensor]]:
    """For every gap, (row, position) and log p(word | known words) (V,)."""
    last = [last_gap(text) for text in texts]
    entered: dict[int, Tensor] = {}  # log p(z_t, what was before), up to a factor
    for t in range(max(last, default=-1) + 1):
        rows = [b for b in range(len(texts)) if t <= last[b]]
        here = {b: positions.at(texts[b][t]) for b in rows}
        if t == 0:
            entered = {b: positions.start(here[b]) for b in rows}
        else:
            entered = _enter(positions, texts, entered, rows, t)
        for b in rows:
            entered[b] = entered[b] - finite_or_zero(entered[b].amax())
            if here[b].token == GAP:
                found = gap_words(positions, entered[b].unsqueeze(0), swept.rows[b], t).squeeze(0)
                yield (b, t), found - finite_or_zero(found.logsumexp(0))


def _enter(
    positions: PositionCache,
    texts: list[list[int]],
    entered: dict[int, Tensor],
    rows: list[int],
    t: int,
) -> dict[int, Tensor]:
    """log p(z_t, what was before) of the rows, from the same at t - 1."""
    before = [positions.at(texts[b][t - 1]) for b in rows]
    after = [positions.at(texts[b][t]) for b in rows]
    leaving = [entered[b] + position.log_weight for b, position in zip(rows, before, strict=True)]
    result = step_forward(positions, before, leaving, after)
    for i, (b, position) in enumerate(zip(rows, before, strict=True)):
        if position.log_end is not None:
            ended = (entered[b] + position.log_end).logsumexp(0)
            result[i] = torch.logaddexp(result[i], positions.start(after[i]) + ended)
    return dict(zip(rows, result, strict=True))
