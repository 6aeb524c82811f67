"""The positions of a text with gaps: which states can be alive there, and what lies between.

A known word is emitted by its K states. A gap may be in any of the Z states, and weighs what a
state emits of the words that a gap may hold: 1, or 1 - p(end | z) where these are all but the end
mark.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bighmm.model.model import Model
from bighmm.model.support import States
from bighmm.model.transitions import EVERY, Product
from bighmm.ops import memory

GAP = -1  # in the place of a token
EVERY_STATE = -1  # the group of positions where all states can be alive


@dataclass(frozen=True, eq=False)
class Position:
    token: int  # or GAP
    group: int  # positions of the same group have the same states
    states: Tensor  # (S,)
    index: States  # the same, as a slice where they follow each other
    log_weight: Tensor  # (S,) log p(what may be here | state), but for an end mark in a gap
    log_end: Tensor | None = None  # (S,) log p(end | state) of a gap that may end and start anew
    resets: bool = False  # the state after this one comes from the start distribution


class PositionCache:
    """The positions of a model, and the moves between them, each computed once.

    ends: whether a gap may hold the end mark.
    """

    def __init__(self, model: Model, ends: bool) -> None:
        self.model, self.ends = model, ends
        self.found: dict[int, Position] = {}
        self.moves: dict[tuple[int, int], Product] = {}

    def at(self, token: int) -> Position:
        """The position of a known token, or of a GAP."""
        if token not in self.found:
            self.found[token] = self._gap() if token == GAP else self._known(token)
        return self.found[token]

    def between(self, before: Position, after: Position) -> Product:
        """The moves from the states of a position to those of the next."""
        pair = before.group, after.group
        if pair not in self.moves:
            if pair == (EVERY_STATE, EVERY_STATE):
                self.moves[pair] = self.model.transitions.product()
            else:
                made = self.model.transitions.product(before.index, after.index)
                parts = {p: m for p, m in self.moves.items() if p != (EVERY_STATE, EVERY_STATE)}
                if sum(m.size for m in parts.values()) + made.size > memory.CACHED:
                    self.moves = {p: m for p, m in self.moves.items() if p not in parts}
                self.moves[pair] = made
        return self.moves[pair]

    def start(self, position: Position) -> Tensor:
        """log p(z_1) (S,)."""
        return self.model.start[position.index]

    def _known(self, token: int) -> Position:
        model = self.model
        tokens = torch.tensor([token], device=model.start.device)
        group, index = model.support.group(token, tokens.device)
        if isinstance(index, slice) and (index.start, index.stop) == (0, model.num_states):
            group = EVERY_STATE
        states = index
        if isinstance(states, slice):
            states = torch.arange(states.start, states.stop, device=tokens.device)
        return Position(
            token,
            group,
            states,
            index,
            model.emissions.of(tokens).squeeze(0),
            resets=model.reset and token == model.end,
        )

    def _gap(self) -> Position:
        model = self.model
        states = torch.arange(model.num_states, device=model.start.device)
        if model.end is None or (self.ends and not model.reset):
            return Position(GAP, EVERY_STATE, states, EVERY, torch.zeros_like(model.start))
        log_end = self._log_end(model.end)
        others = self._log_others(model.end, log_end)
        return Position(GAP, EVERY_STATE, states, EVERY, others, log_end if self.ends else None)

    def _log_end(self, end: int) -> Tensor:
        """log p(end | z) (Z,)."""
        tokens = torch.tensor([end], device=self.model.start.device)
        states = self.model.support.states(tokens).squeeze(0)
        there = states >= 0
        log_probs = self.model.emissions.of(tokens).squeeze(0)
        every = torch.full_like(self.model.start, -torch.inf)
        return every.index_copy(0, states[there], log_probs[there])

    def _log_others(self, end: int, log_end: Tensor) -> Tensor:
        """log Σ p(x | z) (Z,) over all x but the end mark.

        Where that is most of what a state emits, the others are added up: one minus it would be
        wrong in all its digits, and a state that emits nothing else must have exactly zero.
        """
        probs = log_end.exp()
        result = torch.log1p(-probs)
        most = torch.nonzero(probs > 0.5).squeeze(1)
        for piece in memory.pieces(len(most), self.model.vocabulary_size, most.device):
            some = most[piece]
            rows = self.model.support.emission_rows(self.model.emission, some)
            rows = rows.index_fill(1, torch.tensor([end], device=rows.device), -torch.inf)
            result[some] = rows.logsumexp(1)
        return result
