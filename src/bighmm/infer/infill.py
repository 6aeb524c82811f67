"""Gaps in a text: exact samples and exact probabilities of what stands there.

    p(gaps | known words) = Σ_z p(z_1) Π_t p(z_t | z_{t-1}) p(x_t | z_t) / p(known words)

One sweep from right to left gives p(known words from t on | z_t), with which states and words are
drawn from left to right; a second sweep, the other way, gives the probabilities of single words.
`sites` says what a position is, and the sweeps are `sweeps`'.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from bighmm.infer.inputs import (
    CHUNK_ELEMENTS,
    Sequences,
    batches_by_length,
    ends_text,
    read,
    rectangular,
)
from bighmm.infer.numerics import finite_or_zero
from bighmm.infer.sampling import draw, log_moves
from bighmm.infer.sites import GAP, Site, Sites
from bighmm.infer.sweeps import Ahead, Future, look_back, step_ahead, words_here

if TYPE_CHECKING:
    from bighmm.hmm import HMM


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


def read_gaps(hmm: HMM, tokens: Tensor, lengths: Tensor | None) -> Gapped:
    """Token ids (B, T) with -1 in the gaps, checked as `read` does."""
    tokens, lengths = rectangular(tokens, lengths)
    tokens = torch.as_tensor(tokens, device=hmm.start.device)
    sequences = read(hmm, tokens.masked_fill(tokens == GAP, 0), lengths)
    inside = torch.arange(sequences.ids.shape[1], device=tokens.device)
    return Gapped(sequences, (tokens == GAP) & (inside < sequences.lengths.unsqueeze(1)))


def fill(hmm: HMM, gapped: Gapped, n: int, ends: bool, generator: torch.Generator | None) -> Tensor:
    """n samples (B, n, T) of every row, -1 in the padding.

    Raises ValueError if the known words of a row have probability zero.
    """
    ids = gapped.sequences.ids
    result = torch.full((len(ids), n, ids.shape[1]), -1, device=ids.device)
    sites = Sites(hmm, ends)
    for chosen in batches_by_length(gapped.sequences.lengths, hmm.num_states):
        texts = gapped.texts(chosen.tolist())
        future = look_back(sites, texts)
        impossible = torch.nonzero(future.log_prob == -torch.inf).squeeze(1)
        if len(impossible):
            raise ValueError(
                f"the known tokens of row {int(chosen[impossible[0]])} have probability zero in "
                "this HMM, so nothing fits its gaps"
            )
        drawn = _draw(sites, texts, future, n, generator)
        result[chosen, :, : drawn.shape[2]] = drawn
    return result


def fill_probs(hmm: HMM, gapped: Gapped, ends: bool) -> FillProbs:
    """-inf for every word of a gap, and for its row, where the known words have probability 0."""
    gaps = torch.nonzero(gapped.gaps)
    number = {place: i for i, place in enumerate(map(tuple, gaps.tolist()))}
    words = hmm.start.new_empty(len(gaps), hmm.vocabulary_size)
    log_prob = hmm.start.new_zeros(len(gapped.gaps))
    sites = Sites(hmm, ends)
    for chosen in batches_by_length(gapped.sequences.lengths, hmm.num_states):
        texts = gapped.texts(chosen.tolist())
        future = look_back(sites, texts)
        log_prob[chosen] = future.log_prob
        for (b, t), found in _gap_words(sites, texts, future):
            words[number[int(chosen[b]), t]] = found
    return FillProbs(words, log_prob)


def known_log_prob(hmm: HMM, gapped: Gapped, ends: bool) -> Tensor:
    """log p(known words) (B,), the gaps summed out."""
    result = hmm.start.new_zeros(len(gapped.gaps))
    sites = Sites(hmm, ends)
    for chosen in batches_by_length(gapped.sequences.lengths, hmm.num_states):
        result[chosen] = look_back(sites, gapped.texts(chosen.tolist())).log_prob
    return result


def _draw(
    sites: Sites,
    texts: list[list[int]],
    future: Future,
    n: int,
    generator: torch.Generator | None,
) -> Tensor:
    """Token ids (B, n, T): the known ones, and in the gaps what is drawn from left to right."""
    device = sites.hmm.start.device
    result = torch.full((len(texts), n, max(map(len, texts), default=0)), -1, device=device)
    for b, text in enumerate(texts):
        result[b, :, : len(text)] = torch.tensor(text, dtype=torch.long, device=device)
    states = torch.zeros(len(texts), n, dtype=torch.long, device=device)
    fresh = torch.ones_like(states, dtype=torch.bool)
    for t in range(max(map(last_gap, texts), default=-1) + 1):
        together: dict[int, list[int]] = defaultdict(list)
        for b, text in enumerate(texts):
            if t <= last_gap(text):
                together[sites.at(text[t]).group].append(b)
        for rows in together.values():
            site = sites.at(texts[rows[0]][t])
            ahead = torch.stack([future.rows[b].here[t] for b in rows])
            states[rows] = _draw_states(sites, site, states[rows], fresh[rows], ahead, generator)
        for b, text in enumerate(texts):
            if t < len(text) and text[t] == GAP:
                result[b, :, t] = _draw_words(sites, states[b], future.rows[b], t, generator)
        fresh = ends_text(sites.hmm, result[:, :, t])
    return result


def _draw_states(
    sites: Sites,
    site: Site,
    states: Tensor,
    fresh: Tensor,
    ahead: Tensor,
    generator: torch.Generator | None,
) -> Tensor:
    """The next states (R, n), at `site`, after `states` (R, n), given what is ahead (R, S)."""
    row_of = torch.arange(len(states), device=states.device).unsqueeze(1).expand_as(states)
    drawn = []
    pairs = torch.arange(states.numel(), device=states.device)
    for some in pairs.split(max(1, CHUNK_ELEMENTS // len(site.states))):
        source, anew = states.reshape(-1)[some], fresh.reshape(-1)[some]
        moves = log_moves(sites.hmm, source, anew, site.index)
        drawn.append(draw(moves + ahead[row_of.reshape(-1)[some]], generator))
    return site.states[torch.cat(drawn)].view(states.shape)


def _draw_words(
    sites: Sites, states: Tensor, row: Ahead, t: int, generator: torch.Generator | None
) -> Tensor:
    """Words (n,) of the gap at t, which is in `states` (n,)."""
    hmm, gap = sites.hmm, sites.at(GAP)
    drawn = []
    for some in states.split(max(1, CHUNK_ELEMENTS // hmm.vocabulary_size)):
        log_probs = hmm.support.emission_rows(hmm.emission, some).clone()
        if hmm.end is not None and gap.log_end is not None:
            log_probs += row.beyond[t][some].unsqueeze(1)
            log_probs[:, hmm.end] = gap.log_end[some] + row.anew[t]
        elif hmm.end is not None and not sites.ends:
            log_probs[:, hmm.end] = -torch.inf
        drawn.append(draw(log_probs, generator))
    return torch.cat(drawn)


def last_gap(text: list[int]) -> int:
    """Where the last gap of a text is; -1 if it has none."""
    return max((t for t, token in enumerate(text) if token == GAP), default=-1)


def _gap_words(
    sites: Sites, texts: list[list[int]], future: Future
) -> Iterable[tuple[tuple[int, int], Tensor]]:
    """For every gap, (row, position) and log p(word | known words) (V,)."""
    last = [last_gap(text) for text in texts]
    entered: dict[int, Tensor] = {}  # log p(z_t, what was before), up to a factor
    for t in range(max(last, default=-1) + 1):
        rows = [b for b in range(len(texts)) if t <= last[b]]
        here = {b: sites.at(texts[b][t]) for b in rows}
        if t == 0:
            entered = {b: sites.start(here[b]) for b in rows}
        else:
            entered = _enter(sites, texts, entered, rows, t)
        for b in rows:
            entered[b] = entered[b] - finite_or_zero(entered[b].amax())
            if here[b].token == GAP:
                found = words_here(sites, entered[b].unsqueeze(0), future.rows[b], t).squeeze(0)
                yield (b, t), found - finite_or_zero(found.logsumexp(0))


def _enter(
    sites: Sites, texts: list[list[int]], entered: dict[int, Tensor], rows: list[int], t: int
) -> dict[int, Tensor]:
    """log p(z_t, what was before) of the rows, from the same at t - 1."""
    before = [sites.at(texts[b][t - 1]) for b in rows]
    after = [sites.at(texts[b][t]) for b in rows]
    leaving = [entered[b] + site.log_weight for b, site in zip(rows, before, strict=True)]
    result = step_ahead(sites, before, leaving, after)
    for i, (b, site) in enumerate(zip(rows, before, strict=True)):
        if site.log_end is not None:
            ended = (entered[b] + site.log_end).logsumexp(0)
            result[i] = torch.logaddexp(result[i], sites.start(after[i]) + ended)
    return dict(zip(rows, result, strict=True))
