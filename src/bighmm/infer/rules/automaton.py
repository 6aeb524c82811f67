"""Deterministic finite automata (DFAs) over token ids.

A rule treats most tokens alike. So the columns of a transition table are not tokens but *classes*
of tokens that the automaton does not distinguish: a rule about two words needs three classes,
whatever the size of the vocabulary.

Every automaton is complete: its table has a next state for each state and class, which may be a
dead state, from which nothing is accepted. The initial state is 0. Letters: Q states, A classes,
V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bighmm.infer.rules.work import LOOP, spend

S = TypeVar("S", bound=Hashable)
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Automaton:
    """A complete DFA; `&`, `|`, `~` and `+` are intersection, union, complement, concatenation."""

    transitions: Ints  # (Q, A) the state after a token of each class
    accepting: Bools  # (Q,)
    class_of: Ints  # (V,)
    is_minimal: bool = False  # whether it is known to be minimal, and numbered as by `minimal`

    @property
    def num_states(self) -> int:
        return len(self.accepting)

    @property
    def vocabulary_size(self) -> int:
        return len(self.class_of)

    def run(self, tokens: Iterable[int]) -> int:
        """The state after reading `tokens`."""
        state = 0
        for token in tokens:
            state = int(self.transitions[state, self.class_of[token]])
        return state

    def accepts(self, tokens: Iterable[int]) -> bool:
        return bool(self.accepting[self.run(tokens)])

    def after(self, tokens: Iterable[int]) -> Automaton:
        """The automaton of all sequences s for which this one accepts `tokens` followed by s."""
        order = _reachable(self.transitions, self.run(tokens))
        return _renumbered(self.transitions, self.accepting, self.class_of, order).minimal()

    def __and__(self, other: Automaton) -> Automaton:
        return _product(self, other, np.logical_and)

    def __or__(self, other: Automaton) -> Automaton:
        return _product(self, other, np.logical_or)

    def __invert__(self) -> Automaton:
        return Automaton(self.transitions, ~self.accepting, self.class_of, self.is_minimal)

    def __add__(self, other: Automaton) -> Automaton:
        """The automaton of sequences of two parts: one accepted by this, then one by `other`.

        This is the subset construction. A state is the state of this automaton, and the set of all
        states that `other` can be in, one for each possible end of the first part. States from
        which `other` cannot accept are left out of the set. It is not needed if nothing can follow
        an accepted sequence in this automaton, so that there is only one end.
        """
        class_of, ours, theirs = _joint_classes(self, other)
        if not self.can_accept()[self.transitions[self.accepting]].any():
            return _spliced(self, other, class_of, ours, theirs)
        spend(entries=(self.num_states + other.num_states) * len(ours))
        left = self.transitions[:, ours].tolist()
        right = other.transitions[:, theirs].tolist()
        ends, can_accept = self.accepting.tolist(), other.can_accept().tolist()
        final = frozenset(np.flatnonzero(other.accepting).tolist())

        def subset(state: int, second: Iterable[int]) -> tuple[int, frozenset[int]]:
            begun = {0} if ends[state] else set()
            return state, frozenset(s for s in begun.union(second) if can_accept[s])

        def step(now: tuple[int, frozenset[int]], letter: int) -> tuple[int, frozenset[int]]:
            spend(in_python=len(now[1]))
            return subset(left[now[0]][letter], (right[s][letter] for s in now[1]))

        return explore(subset(0, ()), step, lambda now: not final.isdisjoint(now[1]), class_of)

    def repeated(self) -> Automaton:
        """The Kleene star: sequences of any number of parts, also none, that this one accepts.

        A state of the subset construction is whether no token was read yet, and the set of states.
        """
        table = self.transitions.tolist()
        can_accept = self.can_accept().tolist()
        final = frozenset(np.flatnonzero(self.accepting).tolist())

        def step(now: tuple[bool, frozenset[int]], letter: int) -> tuple[bool, frozenset[int]]:
            spend(in_python=len(now[1]))
            reached = {table[s][letter] for s in now[1]}
            begun = set() if final.isdisjoint(reached) else {0}
            return False, frozenset(s for s in reached | begun if can_accept[s])

        def accepts(now: tuple[bool, frozenset[int]]) -> bool:
            return now[0] or not final.isdisjoint(now[1])

        return explore((True, frozenset({0})), step, accepts, self.class_of)

    def isolate(self, token: int) -> tuple[Automaton, int]:
        """An equivalent automaton that has `token` in a class of its own, and that class."""
        old = int(self.class_of[token])
        if int((self.class_of == old).sum()) == 1:
            return self, old
        class_of = self.class_of.copy()
        class_of[token] = new = self.transitions.shape[1]
        transitions = np.concatenate([self.transitions, self.transitions[:, [old]]], axis=1)
        return Automaton(transitions, self.accepting, class_of), new

    def can_accept(self) -> Bools:
        """Whether an accepting state can be reached from each state: (Q,)."""
        sources, places = _sources(self.transitions)
        result = self.accepting.copy()
        fresh = np.flatnonzero(result)
        while len(fresh):
            spend(in_python=LOOP + len(fresh))
            leading = [sources[places[state] : places[state + 1]] for state in fresh]
            reached = np.unique(np.concatenate(leading))
            fresh = reached[~result[reached]]
            result[fresh] = True
        return result

    def accepts_after(self, length: int) -> Bools:
        """Whether exactly n tokens can lead from a state to acceptance: (length + 1, Q), by n."""
        result = np.tile(self.accepting, (length + 1, 1))
        for n in range(length):
            result[n + 1] = result[n][self.transitions].any(1)
        return result

    @property
    def shortest(self) -> int | None:
        """The length of the shortest accepted sequence, None if nothing is accepted."""
        for length, states in enumerate(_levels(self.transitions)):
            if bool(self.accepting[states].any()):
                return length
        return None

    def minimal(self) -> Automaton:
        """The equivalent automaton with the fewest states and classes.

        Two automata are equivalent if and only if their minimal automata have equal arrays.
        Classes are numbered in the order of their first tokens, states in breadth-first order.
        """
        if self.is_minimal:
            return self
        spend(entries=self.transitions.size, in_python=sum(self.transitions.shape))
        columns, class_of = _merged_classes(self.transitions, self.class_of)
        reached = _renumbered(columns, self.accepting, class_of, _reachable(columns))
        part, members = number_rows(_equivalent_states(reached.transitions, reached.accepting))
        columns, class_of = _merged_classes(part[reached.transitions[members]], reached.class_of)
        result = _renumbered(columns, reached.accepting[members], class_of, _reachable(columns))
        return replace(result, is_minimal=True)

    def same_as(self, other: Automaton) -> bool:
        """Whether both accept the same sequences."""
        return self.minimal().key == other.minimal().key

    @property
    def key(self) -> tuple[bytes, ...]:
        """The content of all arrays, for comparison of minimal automata."""
        arrays = (self.transitions, self.accepting, self.class_of)
        return tuple(np.ascontiguousarray(a).tobytes() for a in arrays)


def explore(
    first: S, step: Callable[[S, int], S], accepts: Callable[[S], bool], class_of: Ints
) -> Automaton:
    """The minimal automaton with initial state `first` and transitions `step(state, class)`.

    States are any hashable values; all states that can be reached from `first` are visited.
    accepts: whether a state is accepting.
    class_of: the class (V,) of each token.
    """
    number: dict[S, int] = {first: 0}
    states = [first]
    rows: list[list[int]] = []
    letters = int(class_of.max()) + 1
    for state in states:  # the list grows during the loop
        row = []
        spend(entries=letters, in_python=4 * letters)
        for letter in range(letters):
            reached = step(state, letter)
            if reached not in number:
                number[reached] = len(states)
                states.append(reached)
            row.append(number[reached])
        rows.append(row)
    accepting = np.array([accepts(state) for state in states])
    return Automaton(np.array(rows), accepting, class_of).minimal()


def disjoint_union(automata: list[Automaton]) -> tuple[Automaton, Ints]:
    """One automaton with the states of all N automata, and the initial state (N,) of each."""
    class_of = automata[0].class_of
    letters: list[Ints] = [np.arange(automata[0].transitions.shape[1])]
    for automaton in automata[1:]:
        joint, ours, theirs = number_pairs(class_of, automaton.class_of)
        class_of, letters = joint, [*(column[ours] for column in letters), theirs]
    sizes = [automaton.num_states for automaton in automata]
    first = np.cumsum([0, *sizes[:-1]])
    parts = zip(automata, letters, first, strict=True)
    table = np.concatenate([a.transitions[:, columns] + offset for a, columns, offset in parts])
    return Automaton(table, np.concatenate([a.accepting for a in automata]), class_of), first


def number_pairs(a: Ints, b: Ints) -> tuple[Ints, Ints, Ints]:
    """The pairs (a_v, b_v) of classes that occur for some token v, numbered.

    Returns the number of the pair of each token (V,), and the first and the second part of each
    pair (P,).
    """
    width = int(b.max()) + 1
    pair = a * width + b
    occurs = np.zeros((int(a.max()) + 1) * width, dtype=bool)
    occurs[pair] = True
    occurring = np.flatnonzero(occurs)
    return (np.cumsum(occurs) - 1)[pair], occurring // width, occurring % width


def number_rows(rows: NDArray[Any]) -> tuple[Ints, Ints]:
    """The different rows of an array (N, …), numbered in the order of their first occurrence.

    Returns the number of each row (N,), and the place of the first row with each number.
    """
    number: dict[bytes, int] = {}
    numbers = np.array([number.setdefault(row.tobytes(), len(number)) for row in rows], np.int64)
    places = np.empty(len(number), dtype=np.int64)
    places[numbers[::-1]] = np.arange(len(rows))[::-1]
    return numbers, places


def _product(a: Automaton, b: Automaton, combine: Callable[[Any, Any], Any]) -> Automaton:
    """The product automaton: a state is a pair of states.

    combine: whether a pair is accepting, from whether its two states are.
    """
    class_of, ours, theirs = _joint_classes(a, b)
    left, right = a.transitions[:, ours], b.transitions[:, theirs]
    width = b.num_states
    spend(entries=a.num_states * (width + len(ours)) + width * len(theirs))
    number = np.full(a.num_states * width, -1, dtype=np.int64)
    number[0] = 0
    fresh, count = np.zeros(1, dtype=np.int64), 1
    pairs, rows = [], []
    while len(fresh):
        spend(entries=len(fresh) * len(ours))
        pairs.append(fresh)
        rows.append(left[fresh // width] * width + right[fresh % width])
        reached = np.unique(rows[-1])
        fresh = reached[number[reached] < 0]
        number[fresh] = np.arange(count, count + len(fresh))
        count += len(fresh)
    states = np.concatenate(pairs)
    accepting = combine(a.accepting[states // width], b.accepting[states % width])
    return Automaton(number[np.concatenate(rows)], accepting, class_of).minimal()


def _spliced(a: Automaton, b: Automaton, class_of: Ints, ours: Ints, theirs: Ints) -> Automaton:
    """The concatenation of automata, if nothing can follow a sequence that `a` accepts.

    Its states are those of `a` and then those of `b`; the accepting states of `a` are the initial
    state of `b`.
    """
    spend(entries=(a.num_states + b.num_states) * len(ours))
    begun = np.where(a.accepting, a.num_states, np.arange(a.num_states))
    table = np.concatenate([begun[a.transitions[:, ours]], b.transitions[:, theirs] + a.num_states])
    if a.accepting[0]:
        table[0] = table[a.num_states]
    accepting = np.concatenate([np.zeros_like(a.accepting), b.accepting])
    accepting[0] = a.accepting[0] and b.accepting[0]
    return Automaton(table, accepting, class_of).minimal()


def _joint_classes(a: Automaton, b: Automaton) -> tuple[Ints, Ints, Ints]:
    """Classes that neither automaton has to divide further, as `number_pairs` returns them."""
    if a.vocabulary_size != b.vocabulary_size:
        raise ValueError(
            f"automata over {a.vocabulary_size} and over {b.vocabulary_size} tokens cannot be "
            "combined; compile both for the same vocabulary"
        )
    return number_pairs(a.class_of, b.class_of)


def _merged_classes(table: Ints, class_of: Ints) -> tuple[Ints, Ints]:
    """`table` and `class_of` with equal columns merged, and without classes that have no token.

    The new classes are numbered in the order of their first tokens.
    """
    size = len(class_of)
    first = np.full(table.shape[1], size)
    first[class_of[::-1]] = np.arange(size)[::-1]
    used = np.argsort(first)[: int((first < size).sum())]
    group, representatives = number_rows(table[:, used].T)
    new_of = np.zeros(table.shape[1], dtype=np.int64)
    new_of[used] = group
    return table[:, used[representatives]], new_of[class_of]


def _reachable(table: Ints, first: int = 0) -> Ints:
    """The states that can be reached from `first`, in breadth-first order."""
    return np.concatenate(list(_levels(table, first)))


def _levels(table: Ints, first: int = 0) -> Iterator[Ints]:
    """The states whose shortest way from `first` has 0 tokens, 1, and so on."""
    known = np.zeros(len(table), dtype=bool)
    known[first] = True
    level = np.array([first])
    while len(level):
        spend(in_python=LOOP)
        yield level
        reached = table[level].reshape(-1)
        reached = reached[~known[reached]]
        states, places = np.unique(reached, return_index=True)
        level = states[np.argsort(places)]
        known[states] = True


def _sources(table: Ints) -> tuple[Ints, Ints]:
    """The states with a transition to each state, sorted by it, and the place (Q + 1,) of each."""
    targets = table.ravel()
    by_target = np.argsort(targets, kind="stable")
    places = np.searchsorted(targets[by_target], np.arange(len(table) + 1))
    return by_target // table.shape[1], places


def _equivalent_states(table: Ints, accepting: Bools) -> Ints:
    """The part (Q,) of each state in a partition; states of one part accept the same sequences.

    The partition into accepting and other states is refined until no class of tokens separates two
    states of one part. When a part is divided, its largest piece keeps the number, and only states
    with a transition into one of the other pieces have to be checked again (Hopcroft). So the time
    is almost linear in the number of states, also for long chains of states, as rules about the
    length have.
    """
    sources, places = _sources(table)
    part = accepting.astype(np.int64)
    members = [set(np.flatnonzero(part == number).tolist()) for number in (0, 1)]
    to_check = np.arange(len(table))
    while len(to_check):
        spend(to_check.size * table.shape[1], in_python=LOOP + 2 * len(to_check))
        rows = np.column_stack([part[to_check], part[table[to_check]]])
        by_row: dict[bytes, list[int]] = {}
        for state, row in zip(to_check.tolist(), rows, strict=True):
            by_row.setdefault(row.tobytes(), []).append(state)
        divided: dict[int, list[set[int]]] = {}
        for piece in by_row.values():
            divided.setdefault(int(part[piece[0]]), []).append(set(piece))
        changed: list[int] = []
        for number, pieces in divided.items():
            members[number].difference_update(*pieces)
            pieces.append(members[number])  # states that need no check still have equal rows
            largest = members[number] = max(pieces, key=len)
            for piece_states in pieces:
                if piece_states is not largest and piece_states:
                    part[list(piece_states)] = len(members)
                    members.append(piece_states)
                    changed.extend(piece_states)
        leading = [sources[places[state] : places[state + 1]] for state in changed]
        to_check = np.unique(np.concatenate([to_check[:0], *leading]))
    return part


def _renumbered(table: Ints, accepting: Bools, class_of: Ints, order: Ints) -> Automaton:
    """The automaton of the states `order`, numbered from 0; no transition may leave `order`."""
    number = np.empty(len(table), dtype=np.int64)
    number[order] = np.arange(len(order))
    return Automaton(number[table[order]], accepting[order], class_of)
