"""How likely it is that a rule will hold: the product of an HMM and an automaton.

With n tokens to come, automaton state q, and E(a | z) the emission mass of the tokens of class a,

    entering_n(q, z)  =  Σ_a E(a | z) leaving_{n-1}(δ(q, a), z)      z is about to emit
    leaving_n(q, z)   =  Σ_z' p(z' | z) entering_n(q, z')            z has emitted
    leaving_0(q, z)   =  1 if q accepts, else 0

After an end mark the next state is drawn from the start distribution, whatever z was. All is kept
as logarithms; a step is one product with the transition matrix. Only automaton states that can be
reached by then, and from which acceptance can be reached in time, have rows: a rule about the
length alone costs one row per step, and not one per state.

Letters as in `model.model` and `rules.automaton`: Z, V; Q automaton states, A classes of tokens;
R rows, B batch.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from bighmm.base.interrupting import report
from bighmm.infer.rules.automaton import Automaton, Bools, Ints, number_rows
from bighmm.model.model import Model
from bighmm.model.transitions import Product
from bighmm.ops import memory
from bighmm.ops.log_matmul import finite_or_zero, log_product

FEW = 4  # tokens that are less than one part in so many of all are computed one by one


class AcceptanceTable:
    """log p(the next `length` tokens will be accepted), from states `starts` of an automaton.

    Where an automaton state is asked about, the tokens so far must be able to lead to it.
    """

    def __init__(self, model: Model, automaton: Automaton, starts: Ints, length: int) -> None:
        self.model, self.length = model, length
        self.mark: int | None = None  # the class of the end mark, if texts begin anew after it
        if model.end is not None and model.reset:
            automaton, self.mark = automaton.isolate(model.end)
        device = model.start.device
        self.next_state = torch.from_numpy(automaton.transitions).to(device)  # (Q, A)
        self.class_of = torch.from_numpy(automaton.class_of).to(device)  # (V,)
        live = live_states(automaton, starts, length)
        self._rows = [torch.from_numpy(np.flatnonzero(row)).to(device) for row in live]
        # The row of each automaton state; one without a row finds the last row, which is -inf.
        rows = np.where(live, live.cumsum(1) - 1, live.sum(1, keepdims=True))
        self._row_of = torch.from_numpy(rows).to(device)  # (length + 1, Q)
        edges = _Edges(automaton, np.logical_or.reduce(live), self.mark)
        self._edge_set = torch.from_numpy(edges.set).to(device)  # (Q, D)
        self._edge_target = torch.from_numpy(edges.target).to(device)  # (Q, D)
        self._edge_of_class = torch.from_numpy(edges.of_class).to(device)  # (Q, A)
        of_class = _class_mass(model, automaton)
        self._mark_mass = of_class[self.mark or 0]  # (Z,), used if there is a mark
        self._mass = _set_mass(of_class, torch.from_numpy(edges.members))  # (S + 1, Z)
        self._sweep_back(automaton)

    def log_prob(self, log_states: Tensor, dfa_states: Tensor) -> Tensor:
        """log p(the rule will hold) (B,), with log p(next state) (B, Z) and automaton states (B,).

        This is before the first of the `length` tokens.
        """
        if self.length == 0:
            ahead = self._leaving[0].index_select(0, self._row_of[0, dfa_states])
        else:
            ahead = self.entering(self.length, dfa_states)
        return (log_states + ahead).logsumexp(1).clamp(max=0)

    def entering(self, to_come: int, dfa_states: Tensor) -> Tensor:
        """log p(the rule will hold | z is about to emit) (B, Z), with automaton states (B,)."""
        before, row_of = self._leaving[to_come - 1], self._row_of[to_come - 1]
        sets, targets = self._edge_set[dfa_states], row_of[self._edge_target[dfa_states]]  # (B, D)
        result = before.new_full((len(dfa_states), before.shape[1]), -torch.inf)
        for column in range(sets.shape[1]):
            mass = self._mass.index_select(0, sets[:, column])
            mass += before.index_select(0, targets[:, column])
            torch.logaddexp(result, mass, out=result)
        if self.mark is not None:
            anew = self._anew[to_come - 1][row_of[self.next_state[dfa_states, self.mark]]]
            ended = self._mark_mass + anew.unsqueeze(1)
            torch.logaddexp(result, ended, out=result)
        return result

    def holding(
        self, to_come: int, dfa_states: Tensor, hidden: Tensor, log_alpha: Tensor
    ) -> Tensor:
        """log p(the rule will hold | tokens so far) (B,), with fewer than `length` tokens to come.

        dfa_states (B,) are those after these tokens; log_alpha (B, K) is log p(state | tokens) of
        the states `hidden` (B, K) that may have emitted the last one. For rows in which a text
        starts anew after it, see `holding_anew`.
        """
        rows = self._row_of[to_come][dfa_states]
        ahead = self._leaving[to_come][rows.unsqueeze(1), hidden]
        return (log_alpha + ahead).logsumexp(1).clamp(max=0)

    def holding_anew(self, to_come: int, dfa_states: Tensor) -> Tensor:
        """log p(the rule will hold) (B,) where the next state comes from the start distribution."""
        return self._anew[to_come][self._row_of[to_come][dfa_states]].clamp(max=0)

    def continuation(self, to_come: int, dfa_states: Tensor, hidden: Tensor) -> Tensor:
        """log p(the rule will hold | z emits a token of class a) (B, A), with HMM states (B,)."""
        rows = self._row_of[to_come - 1][self.next_state[dfa_states]]  # (B, A)
        result = self._leaving[to_come - 1][rows, hidden.unsqueeze(1)]
        if self.mark is not None:
            result[:, self.mark] = self._anew[to_come - 1][rows[:, self.mark]]
        return result

    def token_log_probs(self, to_come: int, log_states: Tensor, dfa_states: Tensor) -> Tensor:
        """log p(next token, and the rule will hold) (B, V), with log p(next state) (B, Z)."""
        model, row_of = self.model, self._row_of[to_come - 1]
        edge = self._edge_of_class[dfa_states][:, self.class_of]  # (B, V)
        result = torch.full_like(edge, -torch.inf, dtype=log_states.dtype)
        for column in range(int(edge.max()) + 1 if edge.numel() else 0):
            target = row_of[self._edge_target[dfa_states, column]]
            ahead = log_states + self._leaving[to_come - 1].index_select(0, target)
            here = edge == column
            some = torch.nonzero(here.any(0)).squeeze(1)
            if FEW * len(some) > model.vocabulary_size:
                found = model.support.token_log_probs(model.emissions, ahead)
                result = torch.where(here, found, result)
            else:
                found = model.support.token_log_probs(model.emissions, ahead, some)
                result[:, some] = torch.where(here[:, some], found, result[:, some])
        if self.mark is not None:
            ended = (log_states + self._mark_mass).logsumexp(1)
            anew = self._anew[to_come - 1][row_of[self.next_state[dfa_states, self.mark]]]
            result[:, model.end] = ended + anew
        return result

    def step_forward(
        self, to_come: int, log_states: Tensor, dfa_states: Tensor
    ) -> tuple[Tensor, Tensor]:
        """log p(next state, and the automaton is in q) (R', Z) one token later, and each q (R',).

        log_states: the same before it (R, Z), in the automaton states (R,), which differ. Only
        states from which the rule can still hold with the remaining tokens are kept.
        """
        move = self.model.transitions.product()
        targets = self._rows[to_come - 1]
        emitted = log_states.new_full((len(targets), log_states.shape[1]), -torch.inf)
        fresh = log_states.new_full((len(targets),), -torch.inf)
        row_of = self._row_of[to_come - 1]
        for row, state in enumerate(dfa_states.tolist()):
            for which, target in zip(
                self._edge_set[state].tolist(),
                row_of[self._edge_target[state]].tolist(),
                strict=True,
            ):
                if target < len(targets):
                    joint = log_states[row] + self._mass[which]
                    emitted[target] = torch.logaddexp(emitted[target], joint)
            if self.mark is not None:
                target = int(row_of[self.next_state[state, self.mark]])
                if target < len(targets):
                    ended = (log_states[row] + self._mark_mass).logsumexp(0)
                    fresh[target] = torch.logaddexp(fresh[target], ended)
        moved = _ahead(move, emitted)
        return torch.logaddexp(moved, self.model.start + fresh.unsqueeze(1)), targets

    def after(self, dfa_states: Tensor, tokens: Tensor) -> Tensor:
        """The automaton states (B,) after one more token each (B,)."""
        return self.next_state[dfa_states, self.class_of[tokens]]

    def _sweep_back(self, automaton: Automaton) -> None:
        """leaving_n (R + 1, Z) and, for a state that is drawn anew, (R + 1,), for n < length."""
        model = self.model
        move = model.transitions.product()  # every step needs all of the matrix
        certain = automaton.accepting  # whatever the tokens to come will be
        size = len(self._rows[0])
        self._leaving = [_with_impossible(model.start.new_zeros(size, model.num_states))]
        self._anew = [_with_impossible(model.start.new_zeros(size))]
        for to_come in range(1, self.length):
            report(to_come, self.length)
            certain = np.logical_and.reduce(certain[automaton.transitions], axis=1)
            rows = self._rows[to_come]
            sure = torch.from_numpy(certain).to(rows.device)[rows]
            leaving = model.start.new_zeros(len(rows), model.num_states)
            anew = model.start.new_zeros(len(rows))
            entering = self.entering(to_come, rows[~sure])
            anew[~sure] = (model.start + entering).logsumexp(1)
            leaving[~sure] = _back(move, entering)
            self._leaving.append(_with_impossible(leaving))
            self._anew.append(_with_impossible(anew))


class _Edges:
    """The edges from each automaton state to others, classes with the same target together.

    members: (S, A) which classes each set of classes has. For state q, `set[q]` are the sets and
    `target[q]` the states they lead to: (Q, D), with set S where there are fewer than D.
    of_class: (Q, A) which of the D a class belongs to. Edges to states that are not `live`, and
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
        # The edge of most tokens comes first, so that the others have few.
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
    """Which automaton states matter with n tokens to come: (length + 1, Q).

    Those that can be reached by then from `starts` and can still accept in exactly n tokens.
    """
    reached = np.zeros((length + 1, automaton.num_states), dtype=bool)
    reached[length, starts] = True
    for to_come in reversed(range(length)):
        reached[to_come, automaton.transitions[reached[to_come + 1]]] = True
    return reached & automaton.accepts_after(length)


def _class_mass(model: Model, automaton: Automaton) -> Tensor:
    """log Σ_{x in a} p(x | z) (A, Z)."""
    class_of = torch.from_numpy(automaton.class_of).to(model.start.device)
    if FEW * model.support.states_per_token <= model.num_states:
        return _class_mass_by_cells(model, class_of)
    order = class_of.argsort(stable=True)
    tokens = order.split(torch.bincount(class_of).tolist())
    result = model.start.new_empty(len(tokens), model.num_states)
    alone = torch.tensor([len(ids) == 1 for ids in tokens], device=class_of.device)
    single = torch.stack([ids[0] for ids in tokens])
    for states in memory.pieces(model.num_states, model.vocabulary_size, class_of.device):
        table = model.support.emission_rows(model.emission, states).T  # (V, N)
        part = table.index_select(0, single)
        for letter in torch.nonzero(~alone).squeeze(1).tolist():
            part[letter] = table.index_select(0, tokens[letter]).logsumexp(0)
        result[:, states] = part
    return result


def _class_mass_by_cells(model: Model, class_of: Tensor) -> Tensor:
    """The same from the V·K cells of the emissions, where a state emits few of the tokens."""
    classes, states = int(class_of.max()) + 1, model.num_states
    nowhere = classes * states  # the place of cells that have no state
    tokens = torch.arange(len(class_of), device=class_of.device)
    size = model.support.states_per_token
    pieces = memory.pieces(len(tokens), size, class_of.device, memory.STREAMED)

    def cells(some: slice) -> tuple[Tensor, Tensor]:
        """Places among A·Z and log p(x | z) of the cells of some tokens."""
        ids = model.support.states(tokens[some])
        places = class_of[some].unsqueeze(1) * states + ids
        log_probs = model.emissions.of(tokens[some])
        return torch.where(ids >= 0, places, nowhere).view(-1), log_probs.reshape(-1)

    top = model.start.new_full((nowhere + 1,), -torch.inf)
    for some in pieces:
        top.scatter_reduce_(0, *cells(some), "amax")
    scale = finite_or_zero(top)
    mass = torch.zeros_like(top)
    for some in pieces:
        places, log_probs = cells(some)
        mass.index_add_(0, places, (log_probs - scale[places]).exp_())
    return mass.log_().add_(scale)[:-1].view(classes, states)


def _set_mass(log_mass: Tensor, members: Tensor) -> Tensor:
    """log of the sums over sets of classes, members (S, A), and a last row of -inf: (S + 1, Z)."""
    members = members.to(log_mass.device)
    outside = torch.where(members, 0.0, -torch.inf).to(log_mass.dtype)  # (S, A)
    masses = log_mass.exp()

    def reachable() -> Tensor:
        return members.to(masses.dtype) @ (log_mass > -torch.inf).to(masses.dtype) > 0

    found = log_product(
        outside,
        lambda weights: weights @ masses,
        lambda sets, states: outside[sets] + log_mass.T[states],
        reachable,
    )
    return _with_impossible(found)


def _back(move: Product, entering: Tensor) -> Tensor:
    """log Σ_z' p(z' | z) exp(entering) (R, Z); rows that are -inf throughout cost nothing."""
    alive = torch.nonzero((entering > -torch.inf).any(1)).squeeze(1)
    result = torch.full_like(entering, -torch.inf)
    if len(alive) == 0:
        return result
    return result.index_copy_(0, alive, move.back(entering.index_select(0, alive)))


def _ahead(move: Product, leaving: Tensor) -> Tensor:
    """log Σ_z exp(leaving) p(z' | z) (R, Z); rows that are -inf throughout cost nothing."""
    alive = torch.nonzero((leaving > -torch.inf).any(1)).squeeze(1)
    result = torch.full_like(leaving, -torch.inf)
    if len(alive) == 0:
        return result
    return result.index_copy_(0, alive, move.ahead(leaving.index_select(0, alive)))


def _with_impossible(rows: Tensor) -> Tensor:
    """One more row, of -inf."""
    return torch.cat([rows, rows.new_full((1, *rows.shape[1:]), -torch.inf)])
