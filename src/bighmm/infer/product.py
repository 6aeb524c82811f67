"""An HMM and an automaton side by side: how likely it is, from anywhere, that a rule will hold.

With n tokens to come, automaton state q, and E(a | z) the emission mass of the tokens of class a,

    entering_n(q, z)  =  Σ_a E(a | z) leaving_{n-1}(δ(q, a), z)      z is about to emit
    leaving_n(q, z)   =  Σ_z' p(z' | z) entering_n(q, z')            z has emitted
    leaving_0(q, z)   =  1 if q accepts, else 0

After an end mark the next state is drawn from the start distribution, whatever z was. All is kept
as logarithms; a step is one product with the transition matrix, made in probability space. Only
automaton states that can be reached by then, and from which acceptance can be reached in time,
have rows: a rule about the length alone costs one row per step, and not one per state.

Letters as in hmm.py and automaton.py: Z, V; Q automaton states, A classes; R rows, B batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from bighmm.infer import predict
from bighmm.infer.dense import Move
from bighmm.infer.inputs import CHUNK_ELEMENTS
from bighmm.infer.numerics import SMALLEST_SUM
from bighmm.infer.rules.automaton import Automaton, Bools, Ints, number_rows
from bighmm.model.support import Dense
from bighmm.ops import at_once

if TYPE_CHECKING:
    from bighmm.hmm import HMM


FEW = 4  # tokens that are less than this part of all are done one by one


class Outlook:
    """log p(the next `length` tokens will be accepted), from states `starts` of an automaton.

    Where a state is asked about, it must be one that the tokens so far can have led to.
    """

    def __init__(self, hmm: HMM, automaton: Automaton, starts: Ints, length: int) -> None:
        self.hmm, self.length = hmm, length
        self.mark: int | None = None  # the class of the end mark, if texts begin anew after it
        if hmm.end is not None and hmm.reset:
            automaton, self.mark = automaton.isolate(hmm.end)
        device = hmm.start.device
        self.next_state = torch.from_numpy(automaton.transitions).to(device)  # (Q, A)
        self.class_of = torch.from_numpy(automaton.class_of).to(device)  # (V,)
        live = live_states(automaton, starts, length)
        self._rows = [torch.from_numpy(np.flatnonzero(row)).to(device) for row in live]
        # Where the row of each state is; a state without one finds the last row, which is -inf.
        places = np.where(live, live.cumsum(1) - 1, live.sum(1, keepdims=True))
        self._place = torch.from_numpy(places).to(device)  # (length + 1, Q)
        edges = _Edges(automaton, np.logical_or.reduce(live), self.mark)
        self._edge_set = torch.from_numpy(edges.set).to(device)  # (Q, D)
        self._edge_target = torch.from_numpy(edges.target).to(device)  # (Q, D)
        self._edge_of_class = torch.from_numpy(edges.of_class).to(device)  # (Q, A)
        of_class = _class_mass(hmm, automaton)
        self._mark_mass = of_class[self.mark or 0]  # (Z,), used if there is a mark
        self._mass = _set_mass(of_class, torch.from_numpy(edges.members))  # (S + 1, Z)
        self._look_back(automaton)

    def log_prob(self, log_states: Tensor, states: Tensor) -> Tensor:
        """log p(the rule will hold) (B,), with log p(next state) (B, Z) and automaton states (B,).

        This is before the first of the `length` tokens.
        """
        if self.length == 0:
            ahead = self._leaving[0].index_select(0, self._place[0, states])
        else:
            ahead = self.entering(self.length, states)
        return (log_states + ahead).logsumexp(1).clamp(max=0)

    def entering(self, to_come: int, states: Tensor) -> Tensor:
        """log p(the rule will hold | z is about to emit) (B, Z), with automaton states (B,)."""
        before, place = self._leaving[to_come - 1], self._place[to_come - 1]
        sets, targets = self._edge_set[states], place[self._edge_target[states]]  # (B, D)
        result = before.new_full((len(states), before.shape[1]), -torch.inf)
        for column in range(sets.shape[1]):
            mass = self._mass.index_select(0, sets[:, column])
            mass += before.index_select(0, targets[:, column])
            torch.logaddexp(result, mass, out=result)
        if self.mark is not None:
            anew = self._anew[to_come - 1][place[self.next_state[states, self.mark]]]
            ended = self._mark_mass + anew.unsqueeze(1)
            torch.logaddexp(result, ended, out=result)
        return result

    def continuation(self, to_come: int, states: Tensor, hidden: Tensor) -> Tensor:
        """log p(the rule will hold | z emits a token of class a) (B, A), with HMM states (B,)."""
        place = self._place[to_come - 1][self.next_state[states]]  # (B, A)
        result = self._leaving[to_come - 1][place, hidden.unsqueeze(1)]
        if self.mark is not None:
            result[:, self.mark] = self._anew[to_come - 1][place[:, self.mark]]
        return result

    def token_log_probs(self, to_come: int, log_states: Tensor, states: Tensor) -> Tensor:
        """log p(next token, and the rule will hold) (B, V), with log p(next state) (B, Z)."""
        hmm, place = self.hmm, self._place[to_come - 1]
        edge = self._edge_of_class[states][:, self.class_of]  # (B, V)
        result = torch.full_like(edge, -torch.inf, dtype=log_states.dtype)
        for column in range(int(edge.max()) + 1 if edge.numel() else 0):
            target = place[self._edge_target[states, column]]
            ahead = log_states + self._leaving[to_come - 1].index_select(0, target)
            here = edge == column
            some = torch.nonzero(here.any(0)).squeeze(1)
            if FEW * len(some) > hmm.vocabulary_size:
                result = torch.where(here, predict.token_log_probs(hmm, ahead), result)
            else:
                found = predict.some_token_log_probs(hmm, ahead, some)
                result[:, some] = torch.where(here[:, some], found, result[:, some])
        if self.mark is not None:
            ended = (log_states + self._mark_mass).logsumexp(1)
            anew = self._anew[to_come - 1][place[self.next_state[states, self.mark]]]
            result[:, hmm.end] = ended + anew
        return result

    def after(self, states: Tensor, tokens: Tensor) -> Tensor:
        """The automaton states (B,) after one more token each (B,)."""
        return self.next_state[states, self.class_of[tokens]]

    def _look_back(self, automaton: Automaton) -> None:
        """leaving_n (R + 1, Z) and, for a state that is drawn anew, (R + 1,), for n < length."""
        hmm = self.hmm
        move = Move.of(hmm.transitions)  # every step needs all of the matrix
        certain = automaton.accepting  # whatever the tokens to come will be
        self._leaving = [_with_nothing(hmm.start.new_zeros(len(self._rows[0]), hmm.num_states))]
        self._anew = [_with_nothing(hmm.start.new_zeros(len(self._rows[0])))]
        for to_come in range(1, self.length):
            certain = np.logical_and.reduce(certain[automaton.transitions], axis=1)
            rows = self._rows[to_come]
            sure = torch.from_numpy(certain).to(rows.device)[rows]
            leaving = hmm.start.new_zeros(len(rows), hmm.num_states)
            anew = hmm.start.new_zeros(len(rows))
            entering = self.entering(to_come, rows[~sure])
            anew[~sure] = (hmm.start + entering).logsumexp(1)
            leaving[~sure] = _back(move, entering)
            self._leaving.append(_with_nothing(leaving))
            self._anew.append(_with_nothing(anew))


class _Edges:
    """The ways from each state to others, all classes of tokens that go the same way together.

    members: (S, A) which classes each set of classes has. For state q, `set[q]` are the sets and
    `target[q]` the states they lead to: (Q, D), with set S where there are fewer than D.
    of_class: (Q, A) which of the D a class belongs to. Ways to states that are not `live`, and
    the class of the end mark, are left out: -1.
    """

    def __init__(self, automaton: Automaton, live: Bools, mark: int | None) -> None:
        table = automaton.transitions
        states, letters = table.shape
        used = live[:, None] & live[table]
        if mark is not None:
            used[:, mark] = False
        pair = (np.arange(states)[:, None] * states + table)[used]
        edges, edge = np.unique(pair, return_inverse=True)
        source, target = edges // states, edges % states
        first = np.searchsorted(source, np.arange(states))
        # The way of most tokens comes first, so that the others are of few.
        tokens = np.bincount(automaton.class_of, minlength=letters)
        width = np.zeros(len(edges), dtype=np.int64)
        np.add.at(width, edge, np.broadcast_to(tokens, table.shape)[used])
        within = np.empty(len(edges), dtype=np.int64)
        within[np.lexsort((-width, source))] = np.arange(len(edges)) - first[source]
        self.of_class = np.full(table.shape, -1)
        self.of_class[used] = within[edge]
        classes = np.zeros((len(edges), letters), dtype=bool)
        classes[edge, np.nonzero(used)[1]] = True
        number, places = number_rows(np.packbits(classes, axis=1))
        self.members = classes[places]
        degree = int(within.max(initial=-1)) + 1
        self.set = np.full((states, degree), len(self.members))
        self.target = np.zeros((states, degree), dtype=np.int64)
        self.set[source, within] = number
        self.target[source, within] = target


def live_states(automaton: Automaton, starts: Ints, length: int) -> Bools:
    """Which states matter with n tokens to come: (length + 1, Q).

    Those that can be reached by then from `starts` and can still accept in exactly n tokens.
    """
    reached = np.zeros((length + 1, automaton.num_states), dtype=bool)
    reached[length, starts] = True
    for to_come in reversed(range(length)):
        reached[to_come, automaton.transitions[reached[to_come + 1]]] = True
    return reached & automaton.accepts_after(length)


def _class_mass(hmm: HMM, automaton: Automaton) -> Tensor:
    """log Σ_{x in a} p(x | z) (A, Z)."""
    class_of = torch.from_numpy(automaton.class_of).to(hmm.start.device)
    order = class_of.argsort(stable=True)
    tokens = order.split(torch.bincount(class_of).tolist())
    result = hmm.start.new_empty(len(tokens), hmm.num_states)
    step = max(1, at_once(CHUNK_ELEMENTS, class_of.device) // hmm.vocabulary_size)
    every = torch.arange(hmm.num_states, device=class_of.device)
    alone = torch.tensor([len(ids) == 1 for ids in tokens], device=class_of.device)
    single = torch.stack([ids[0] for ids in tokens])
    for states in every.split(step):
        if isinstance(hmm.support, Dense):
            table = hmm.emission[:, states[0] : states[-1] + 1]
        else:
            table = hmm.support.emission_rows(hmm.emission, states).T  # (V, N)
        part = table.index_select(0, single)
        for letter in torch.nonzero(~alone).squeeze(1).tolist():
            part[letter] = table.index_select(0, tokens[letter]).logsumexp(0)
        result[:, states] = part
    return result


def _set_mass(log_mass: Tensor, members: Tensor) -> Tensor:
    """log of the sums over sets of classes, members (S, A), and a last row of -inf: (S + 1, Z).

    A product in probability space; the few sums that are too small again in log space.
    """
    members = members.to(log_mass.device)
    chosen = members.to(log_mass.dtype)
    mass = chosen @ log_mass.exp()
    result = mass.log()
    possible = chosen @ (log_mass > -torch.inf).to(chosen.dtype) > 0
    low = torch.nonzero((mass < SMALLEST_SUM[mass.dtype]) & possible)
    for part in low.split(max(1, CHUNK_ELEMENTS // len(log_mass))):
        sets, states = part.unbind(1)
        of_class = log_mass.T[states].masked_fill(~members[sets], -torch.inf)
        result[sets, states] = of_class.logsumexp(1)
    return _with_nothing(result)


def _back(move: Move, entering: Tensor) -> Tensor:
    """log Σ_z' p(z' | z) exp(entering) (R, Z); rows that nothing can come of cost nothing."""
    alive = torch.nonzero((entering > -torch.inf).any(1)).squeeze(1)
    result = torch.full_like(entering, -torch.inf)
    if len(alive) == 0:
        return result
    return result.index_copy_(0, alive, move.back(entering.index_select(0, alive)))


def _with_nothing(rows: Tensor) -> Tensor:
    """One more row, of -inf."""
    return torch.cat([rows, rows.new_full((1, *rows.shape[1:]), -torch.inf)])
