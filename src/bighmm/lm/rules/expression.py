"""Regular expressions over characters, as automata over the bytes of UTF-8.

An expression has the syntax of Python's `re`, by whose parser it is read. Look-around, references
to groups, flags, and anchors elsewhere than at the ends are not regular or not supported. The
expression becomes a nondeterministic automaton, built from its end to its beginning, and this a
deterministic one by the subset construction.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from re import _constants as code  # type: ignore[attr-defined]  # has no public name
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

import numpy as np

from bighmm.infer.rules.automaton import Automaton
from bighmm.infer.rules.work import spend
from bighmm.lm.rules.characters import Ranges, members, others, utf8

BEGIN, END = (code.AT, code.AT_BEGINNING), (code.AT, code.AT_END)


def byte_automaton(pattern: str) -> Automaton:
    """The minimal automaton over bytes of the texts that match an expression as a whole.

    Raises ValueError if the expression is malformed or has parts that are not supported.
    """
    try:
        parsed = parser.parse(pattern)
        if parsed.state.flags & ~re.UNICODE:
            raise ValueError("flags are not supported")
        nfa = _Automaton()
        ways = [nfa.sequence(items, nfa.final) for items, _, _ in alternatives(list(parsed))]
        first = nfa.state(ways)
    except (re.error, OverflowError) as error:
        raise ValueError(f"the expression {_shown(pattern)} cannot be used: {error}") from None
    except RecursionError:
        raise ValueError(f"the expression {_shown(pattern)} is nested too deeply") from None
    except ValueError as error:
        if type(error) is not ValueError:  # a limit
            raise
        raise ValueError(f"the expression {_shown(pattern)} cannot be used: {error}") from None
    return nfa.deterministic(first)


def alternatives(items: list[Any]) -> list[tuple[list[Any], bool, bool]]:
    """The alternatives of a parsed expression, and whether each had anchors before and after it."""
    branches = [items]
    if len(items) == 1 and items[0][0] is code.BRANCH:
        branches = [list(branch) for branch in items[0][1][1]]
    found = []
    for branch in branches:
        begins, ends = branch[:1] == [BEGIN], branch[-1:] == [END]
        found.append((branch[int(begins) : len(branch) - int(ends)], begins, ends))
    return found


class _Automaton:
    """A nondeterministic automaton over bytes.

    The methods named after parts of expressions return the state from which a part is read, after
    which the automaton is in the state `then`.
    """

    def __init__(self) -> None:
        self.edges: list[list[tuple[int, int, int]]] = []  # first byte, last byte, next state
        self.empty: list[list[int]] = []  # states that can be reached without reading
        self.known: dict[tuple[Any, int], int] = {}  # states that read a set of characters
        self.final = self.state()

    def state(self, empty: Iterable[int] = ()) -> int:
        spend(in_python=12)
        self.edges.append([])
        self.empty.append(list(empty))
        return len(self.edges) - 1

    def sequence(self, items: list[Any], then: int) -> int:
        for kind, value in reversed(items):
            then = self.item(kind, value, then)
        return then

    def item(self, kind: Any, value: Any, then: int) -> int:
        if kind is code.LITERAL:
            return self.characters(((value, value),), then)
        if kind is code.NOT_LITERAL:
            return self.characters(others([(value, value)]), then)
        if kind is code.ANY:
            return self.characters(others([(10, 10)]), then)
        if kind is code.IN:
            return self.characters(members(tuple(value)), then)
        if kind is code.BRANCH:
            return self.state([self.sequence(list(branch), then) for branch in value[1]])
        if kind is code.SUBPATTERN and not value[1] and not value[2]:
            return self.sequence(list(value[3]), then)
        if kind in (code.MAX_REPEAT, code.MIN_REPEAT):
            least, most, part = value
            return self.repeated(least, most, list(part), then)
        if kind is code.AT:
            raise ValueError("it has an anchor elsewhere than at its ends")
        raise ValueError(f"it has a part of the kind {str(kind).lower()}, which is not supported")

    def repeated(self, least: int, most: int, items: list[Any], then: int) -> int:
        end = then
        if most == code.MAXREPEAT:
            then = self.state([end])
            self.empty[then].append(self.sequence(items, then))
        else:
            for _ in range(most - least):
                then = self.state([end, self.sequence(items, then)])
        for _ in range(least):
            then = self.sequence(items, then)
        return then

    def characters(self, ranges: Ranges, then: int) -> int:
        """One character; equal sets before the same state share their states."""
        sequences = tuple(s for first, last in ranges for s in utf8(first, last))
        return self.bytes(sequences, then)

    def bytes(self, sequences: tuple[Ranges, ...], then: int) -> int:
        """One of several sequences of bytes, each a range for every byte."""
        if (sequences, then) in self.known:
            return self.known[sequences, then]
        rests: dict[tuple[int, int], list[Ranges]] = {}
        for first, *rest in sequences:
            rests.setdefault(first, []).append(tuple(rest))
        state = self.known[sequences, then] = self.state()
        for (low, high), after in rests.items():
            spend(in_python=4)
            target = self.bytes(tuple(after), then) if after[0] else then
            self.edges[state].append((low, high, target))
        return state

    def deterministic(self, first: int) -> Automaton:
        """The minimal deterministic automaton, by the subset construction."""
        bounds = {0, 256}
        for edges in self.edges:
            for low, high, _ in edges:
                bounds |= {low, high + 1}
        starts = sorted(bounds)
        letter = np.searchsorted(starts, np.arange(256), side="right") - 1
        letters = len(starts) - 1
        spans = [[(int(letter[a]), int(letter[b]), t) for a, b, t in e] for e in self.edges]
        widths = [sum(high - low + 1 for low, high, _ in each) for each in spans]
        closures: dict[int, frozenset[int]] = {}

        def closure(state: int) -> frozenset[int]:
            """The states with edges, and the final state, that are reached without reading."""
            if state not in closures:
                seen, stack = {state}, [state]
                while stack:
                    for other in self.empty[stack.pop()]:
                        if other not in seen:
                            seen.add(other)
                            stack.append(other)
                spend(in_python=len(seen))
                closures[state] = frozenset(s for s in seen if spans[s] or s == self.final)
            return closures[state]

        subsets = {closure(first): 0}
        order = list(subsets)
        by_targets: dict[tuple[int, ...], int] = {}
        rows = []
        for subset in order:  # the list grows during the loop
            spend(in_python=2 * letters + sum(widths[state] for state in subset))
            targets: list[list[int]] = [[] for _ in range(letters)]
            for state in subset:
                for low, high, target in spans[state]:
                    for place in range(low, high + 1):
                        targets[place].append(target)
            row = []
            for reached in targets:
                key = tuple(sorted(set(reached)))
                if key not in by_targets:
                    union = frozenset().union(*map(closure, key))
                    spend(in_python=len(union))
                    if union not in subsets:
                        subsets[union] = len(order)
                        order.append(union)
                    by_targets[key] = subsets[union]
                row.append(by_targets[key])
            rows.append(row)
        accepting = np.array([self.final in subset for subset in order])
        return Automaton(np.array(rows), accepting, letter).minimal()


def _shown(pattern: str) -> str:
    """An expression in a message, cut if it is long."""
    text = repr(pattern)
    return text if len(text) <= 100 else f"{text[:97]}...'"
