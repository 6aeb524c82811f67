"""Deterministic finite automata over token ids.

Most tokens mean nothing to a rule, so the columns of the transition table are *classes* of tokens
that the automaton never tells apart: a rule about two words over a vocabulary of 30,000 has three.

Every automaton is complete (a state from which nothing can be accepted is a state like any other)
and begins in state 0. Letters: Q states, A classes, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

S = TypeVar("S", bound=Hashable)
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Automaton:
    transitions: Ints  # (Q, A) the state after a token of each class
    accepting: Bools  # (Q,)
    class_of: Ints  # (V,)
    is_minimal: bool = False  # known to be what `minimal` gives

    @property
    def num_states(self) -> int:
        return len(self.accepting)

    @property
    def vocabulary_size(self) -> int:
        return len(self.class_of)

    def run(self, tokens: Iterable[int]) -> int:
        """The state after `tokens`."""
        state = 0
        for token in tokens:
            state = int(self.transitions[state, self.class_of[token]])
        return state

    def accepts(self, tokens: Iterable[int]) -> bool:
        return bool(self.accepting[self.run(tokens)])

    def after(self, tokens: Iterable[int]) -> Automaton:
        """What accepts a sequence if this automaton accepts `tokens` followed by it."""
        order = _met(self.transitions, self.run(tokens))
        return _numbered(self.transitions, self.accepting, self.class_of, order).minimal()

    def __and__(self, other: Automaton) -> Automaton:
        return _product(self, other, np.logical_and)

    def __or__(self, other: Automaton) -> Automaton:
        return _product(self, other, np.logical_or)

    def __invert__(self) -> Automaton:
        return Automaton(self.transitions, ~self.accepting, self.class_of, self.is_minimal)

    def __add__(self, other: Automaton) -> Automaton:
        """Sequences that can be cut in two, the first part accepted here, the second by `other`.

        The subset construction: where this automaton is, and all the states in which `other` can
        be for the cuts that were possible so far.
        """
        class_of, ours, theirs = _joint_classes(self, other)
        left = self.transitions[:, ours].tolist()
        right = other.transitions[:, theirs].tolist()
        ends, hopeful = self.accepting.tolist(), other.hopeful().tolist()
        final = frozenset(np.flatnonzero(other.accepting).tolist())

        def at(state: int, second: Iterable[int]) -> tuple[int, frozenset[int]]:
            begun = {0} if ends[state] else set()
            return state, frozenset(s for s in begun.union(second) if hopeful[s])

        def step(now: tuple[int, frozenset[int]], letter: int) -> tuple[int, frozenset[int]]:
            return at(left[now[0]][letter], (right[s][letter] for s in now[1]))

        return explore(at(0, ()), step, lambda now: not final.isdisjoint(now[1]), class_of)

    def repeated(self) -> Automaton:
        """Sequences that can be cut into any number of parts, each accepted here; none is one."""
        table = self.transitions.tolist()
        hopeful = self.hopeful().tolist()
        final = frozenset(np.flatnonzero(self.accepting).tolist())

        def step(now: tuple[bool, frozenset[int]], letter: int) -> tuple[bool, frozenset[int]]:
            reached = {table[s][letter] for s in now[1]}
            begun = set() if final.isdisjoint(reached) else {0}
            return False, frozenset(s for s in reached | begun if hopeful[s])

        def accepts(now: tuple[bool, frozenset[int]]) -> bool:
            return now[0] or not final.isdisjoint(now[1])

        return explore((True, frozenset({0})), step, accepts, self.class_of)

    def isolate(self, token: int) -> tuple[Automaton, int]:
        """The same language with `token` in a class of its own, and that class."""
        found = int(self.class_of[token])
        if int((self.class_of == found).sum()) == 1:
            return self, found
        class_of = self.class_of.copy()
        class_of[token] = alone = self.transitions.shape[1]
        transitions = np.concatenate([self.transitions, self.transitions[:, [found]]], axis=1)
        return Automaton(transitions, self.accepting, class_of), alone

    def hopeful(self) -> Bools:
        """Whether something can still be accepted from each state: (Q,)."""
        hope = self.accepting
        while True:
            wider = hope | hope[self.transitions].any(1)
            if wider.sum() == hope.sum():
                return hope
            hope = wider

    def accepts_after(self, length: int) -> Bools:
        """Whether some `n` tokens lead from each state to acceptance: (length + 1, Q) for all n."""
        found = np.tile(self.accepting, (length + 1, 1))
        for n in range(length):
            found[n + 1] = found[n][self.transitions].any(1)
        return found

    @property
    def shortest(self) -> int | None:
        """The length of the shortest sequence that is accepted, None if there is none."""
        reached = np.zeros(self.num_states, dtype=bool)
        reached[0] = True
        for length in range(self.num_states):
            if bool((reached & self.accepting).any()):
                return length
            reached[self.transitions[reached]] = True
        return None

    def minimal(self) -> Automaton:
        """The one automaton of this language with the fewest states and classes.

        Two languages are equal if and only if the arrays of their minimal automata are. Classes
        are numbered by their first token, and states in the order in which they are met.
        """
        if self.is_minimal:
            return self
        columns, class_of = _merged_classes(self.transitions, self.class_of)
        met = _numbered(columns, self.accepting, class_of, _met(columns))
        part, members = number_rows(_parts(met.transitions, met.accepting))
        columns, class_of = _merged_classes(part[met.transitions[members]], met.class_of)
        found = _numbered(columns, met.accepting[members], class_of, _met(columns))
        return replace(found, is_minimal=True)

    def same_as(self, other: Automaton) -> bool:
        """Whether both accept the same sequences."""
        return self.minimal().key == other.minimal().key

    @property
    def key(self) -> tuple[bytes, ...]:
        """All there is to it, for comparison."""
        arrays = (self.transitions, self.accepting, self.class_of)
        return tuple(np.ascontiguousarray(a).tobytes() for a in arrays)


def explore(
    first: S, step: Callable[[S, int], S], accepts: Callable[[S], bool], class_of: Ints
) -> Automaton:
    """The minimal automaton whose states are what `step(state, class)` leads to from `first`."""
    number: dict[S, int] = {first: 0}
    states = [first]
    rows: list[list[int]] = []
    for state in states:  # it grows meanwhile
        row = []
        for letter in range(int(class_of.max()) + 1):
            reached = step(state, letter)
            if reached not in number:
                number[reached] = len(states)
                states.append(reached)
            row.append(number[reached])
        rows.append(row)
    accepting = np.array([accepts(state) for state in states])
    return Automaton(np.array(rows), accepting, class_of).minimal()


def side_by_side(automata: list[Automaton]) -> tuple[Automaton, Ints]:
    """All of them in one table, and the state in which each begins: (N,)."""
    class_of = automata[0].class_of
    letters: list[Ints] = [np.arange(automata[0].transitions.shape[1])]
    for automaton in automata[1:]:
        joint, ours, theirs = number_pairs(class_of, automaton.class_of)
        class_of, letters = joint, [*(column[ours] for column in letters), theirs]
    sizes = [automaton.num_states for automaton in automata]
    first = np.cumsum([0, *sizes[:-1]])
    parts = zip(automata, letters, first, strict=True)
    table = np.concatenate([a.transitions[:, columns] + at for a, columns, at in parts])
    return Automaton(table, np.concatenate([a.accepting for a in automata]), class_of), first


def _product(a: Automaton, b: Automaton, both: Callable[[Any, Any], Any]) -> Automaton:
    """Both at once: a state is a pair of states, accepting as `both` says."""
    class_of, ours, theirs = _joint_classes(a, b)
    left, right = a.transitions[:, ours], b.transitions[:, theirs]
    width = b.num_states
    number = np.full(a.num_states * width, -1, dtype=np.int64)
    number[0] = 0
    fresh, count = np.zeros(1, dtype=np.int64), 1
    pairs, rows = [], []
    while len(fresh):
        pairs.append(fresh)
        rows.append(left[fresh // width] * width + right[fresh % width])
        met = np.unique(rows[-1])
        fresh = met[number[met] < 0]
        number[fresh] = np.arange(count, count + len(fresh))
        count += len(fresh)
    states = np.concatenate(pairs)
    accepting = both(a.accepting[states // width], b.accepting[states % width])
    return Automaton(number[np.concatenate(rows)], accepting, class_of).minimal()


def _joint_classes(a: Automaton, b: Automaton) -> tuple[Ints, Ints, Ints]:
    if a.vocabulary_size != b.vocabulary_size:
        raise ValueError(
            f"automata over {a.vocabulary_size} and over {b.vocabulary_size} tokens cannot be "
            "combined; compile both for the same vocabulary"
        )
    return number_pairs(a.class_of, b.class_of)


def number_pairs(a: Ints, b: Ints) -> tuple[Ints, Ints, Ints]:
    """The pairs of classes that occur: that of each token (V,), and both parts of each pair."""
    width = int(b.max()) + 1
    pair = a * width + b
    occurs = np.zeros((int(a.max()) + 1) * width, dtype=bool)
    occurs[pair] = True
    found = np.flatnonzero(occurs)
    return (np.cumsum(occurs) - 1)[pair], found // width, found % width


def _merged_classes(table: Ints, class_of: Ints) -> tuple[Ints, Ints]:
    """Without classes that have no token, and with equal columns as one, by their first token."""
    size = len(class_of)
    first = np.full(table.shape[1], size)
    first[class_of[::-1]] = np.arange(size)[::-1]
    used = np.argsort(first)[: int((first < size).sum())]
    group, kept = number_rows(table[:, used].T)
    new_of = np.zeros(table.shape[1], dtype=np.int64)
    new_of[used] = group
    return table[:, used[kept]], new_of[class_of]


def _met(table: Ints, first: int = 0) -> Ints:
    """The states that can be reached from `first`, in the order in which they are met."""
    known = np.zeros(len(table), dtype=bool)
    known[first] = True
    order = [np.array([first])]
    while len(order[-1]):
        reached = table[order[-1]].reshape(-1)
        reached = reached[~known[reached]]
        states, places = np.unique(reached, return_index=True)
        order.append(states[np.argsort(places)])
        known[states] = True
    return np.concatenate(order)


def _parts(table: Ints, accepting: Bools) -> Ints:
    """The part of each state (Q,); states of one part accept the same sequences.

    The partition into accepting and other states is refined until no class of tokens separates two
    states of one part. The largest piece of a part that is divided keeps its number, and only
    states that lead to the other pieces are looked at next (Hopcroft): time hardly grows faster
    than the number of states, even where they make a long chain, as those of a length do.
    """
    targets = table.ravel()
    by_target = np.argsort(targets, kind="stable")
    places = np.searchsorted(targets[by_target], np.arange(len(table) + 1))
    sources = by_target // table.shape[1]
    part = accepting.astype(np.int64)
    members = [set(np.flatnonzero(part == number).tolist()) for number in (0, 1)]
    looked_at = np.arange(len(table))
    while len(looked_at):
        rows = np.column_stack([part[looked_at], part[table[looked_at]]])
        pieces: dict[bytes, list[int]] = {}
        for state, row in zip(looked_at.tolist(), rows, strict=True):
            pieces.setdefault(row.tobytes(), []).append(state)
        divided: dict[int, list[set[int]]] = {}
        for piece in pieces.values():
            divided.setdefault(int(part[piece[0]]), []).append(set(piece))
        changed: list[int] = []
        for number, found in divided.items():
            members[number].difference_update(*found)
            found.append(members[number])  # those that were not looked at are alike
            largest = members[number] = max(found, key=len)
            for others in found:
                if others is not largest and others:
                    part[list(others)] = len(members)
                    members.append(others)
                    changed.extend(others)
        leading = [sources[places[state] : places[state + 1]] for state in changed]
        looked_at = np.unique(np.concatenate([looked_at[:0], *leading]))
    return part


def _numbered(table: Ints, accepting: Bools, class_of: Ints, order: Ints) -> Automaton:
    """The states `order`, which lead only to each other, numbered from 0 on."""
    number = np.empty(len(table), dtype=np.int64)
    number[order] = np.arange(len(order))
    return Automaton(number[table[order]], accepting[order], class_of)


def number_rows(rows: NDArray[Any]) -> tuple[Ints, Ints]:
    """A number for each different row, in the order of their first places, and these places."""
    number: dict[bytes, int] = {}
    found = [number.setdefault(row.tobytes(), len(number)) for row in rows]
    numbers = np.array(found, dtype=np.int64)
    places = np.empty(len(number), dtype=np.int64)
    places[numbers[::-1]] = np.arange(len(rows))[::-1]
    return numbers, places
