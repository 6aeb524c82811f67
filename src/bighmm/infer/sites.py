"""The positions of a text with gaps: which states can be alive there, and what lies between.

A known word is emitted by its K states. A gap may be in any of the Z states, and weighs what a
state emits of the words that a gap may hold: 1, or 1 - p(end | z) where these are all but the end
mark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bighmm.infer.dense import KEPT_ELEMENTS, Move
from bighmm.infer.inputs import CHUNK_ELEMENTS
from bighmm.infer.parts import Part
from bighmm.model.support import Blocked, Dense, some_states

if TYPE_CHECKING:
    from bighmm.hmm import HMM

GAP = -1  # in the place of a token
EVERY = -1  # the group of sites where all states can be alive


@dataclass(frozen=True, eq=False)
class Site:
    token: int  # or GAP
    group: int  # sites of the same group have the same states
    states: Tensor  # (S,)
    index: Tensor | slice  # the same, as a slice where they follow each other
    log_weight: Tensor  # (S,) log p(what may be here | state), but for an end mark in a gap
    log_end: Tensor | None = None  # (S,) log p(end | state) of a gap that may end and start anew
    resets: bool = False  # the state after this one comes from the start distribution


class Sites:
    """The sites of a model, and the moves between them, each made once.

    ends: whether a gap may hold the end mark.
    """

    def __init__(self, hmm: HMM, ends: bool) -> None:
        self.hmm = hmm
        self.ends = ends
        self.found: dict[int, Site] = {}
        self.moves: dict[tuple[int, int], Move | Part] = {}

    def at(self, token: int) -> Site:
        if token not in self.found:
            self.found[token] = self._gap() if token == GAP else self._known(token)
        return self.found[token]

    def between(self, before: Site, after: Site) -> Move | Part:
        """The moves from a site's states to another's, as products with vectors over them."""
        pair = before.group, after.group
        if pair not in self.moves:
            made: Move | Part
            if pair == (EVERY, EVERY):
                made = Move.of(self.hmm.transitions)
            else:
                made = Part(self.hmm.transitions, before.index, after.index)
                held = [m.size for m in self.moves.values() if isinstance(m, Part)]
                if sum(held) + made.size > KEPT_ELEMENTS:
                    self.moves = {p: m for p, m in self.moves.items() if isinstance(m, Move)}
            self.moves[pair] = made
        return self.moves[pair]

    def start(self, site: Site) -> Tensor:
        """log p(z_1) (S,)."""
        return self.hmm.start[site.index]

    def _known(self, token: int) -> Site:
        hmm = self.hmm
        tokens = torch.tensor([token], device=hmm.start.device)
        states = some_states(hmm.support, tokens).squeeze(0)
        index: Tensor | slice = states
        group = token
        if isinstance(hmm.support, Dense):
            group, index = EVERY, slice(0, hmm.num_states)
        elif isinstance(hmm.support, Blocked):
            group = int(hmm.support.blocks(tokens))
            index = slice(group * hmm.support.alive, (group + 1) * hmm.support.alive)
        log_weight = hmm.emissions.of(tokens).squeeze(0)
        resets = hmm.reset and token == hmm.end
        return Site(token, group, states, index, log_weight, resets=resets)

    def _gap(self) -> Site:
        hmm = self.hmm
        states = torch.arange(hmm.num_states, device=hmm.start.device)
        index = slice(0, hmm.num_states)
        if hmm.end is None or (self.ends and not hmm.reset):
            return Site(GAP, EVERY, states, index, torch.zeros_like(hmm.start))
        log_end = self._log_end(hmm.end)
        others = self._log_others(hmm.end, log_end)
        return Site(GAP, EVERY, states, index, others, log_end if self.ends else None)

    def _log_end(self, end: int) -> Tensor:
        """log p(end | z) (Z,)."""
        tokens = torch.tensor([end], device=self.hmm.start.device)
        states = self.hmm.support.states(tokens).squeeze(0)
        there = states >= 0
        log_probs = self.hmm.emissions.of(tokens).squeeze(0)
        every = torch.full_like(self.hmm.start, -torch.inf)
        return every.index_copy(0, states[there], log_probs[there])

    def _log_others(self, end: int, log_end: Tensor) -> Tensor:
        """log Σ p(x | z) (Z,) over all x but the end mark.

        Where that is most of what a state emits, the others are added up: one minus it would be
        wrong in all its digits, and a state that emits nothing else must have exactly zero.
        """
        probs = log_end.exp()
        result = torch.log1p(-probs)
        most = torch.nonzero(probs > 0.5).squeeze(1)
        for some in most.split(max(1, CHUNK_ELEMENTS // self.hmm.vocabulary_size)):
            rows = self.hmm.support.emission_rows(self.hmm.emission, some)
            rows = rows.index_fill(1, torch.tensor([end], device=rows.device), -torch.inf)
            result[some] = rows.logsumexp(1)
        return result
