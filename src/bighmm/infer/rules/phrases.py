"""Automata of sequences of token ids: one sequence, one token, or phrases that occur or do not.

Each function takes the size of the vocabulary last. The automata need not be minimal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from bighmm.infer.rules.automaton import Automaton
from bighmm.infer.rules.work import spend


def exactly(ids: Sequence[int], size: int) -> Automaton:
    """Accepts the one sequence `ids`."""
    return any_of([ids], size)


def any_of(sequences: Iterable[Sequence[int]], size: int) -> Automaton:
    """Accepts each of the sequences, and nothing else.

    A state is a set of endings: prefixes that can be continued in the same ways are one state. The
    last state is dead. Tokens with the same transitions are one class.
    """
    children: list[dict[int, int]] = [{}]  # of each prefix, by token
    complete = set()
    for ids in sequences:
        spend(in_python=1 + len(ids))
        prefix = 0
        for id in ids:
            prefix = children[prefix].setdefault(id, len(children))
            if prefix == len(children):
                children.append({})
        complete.add(prefix)
    states: dict[tuple[bool, tuple[tuple[int, int], ...]], int] = {}
    state_of = [0] * len(children)
    for prefix in reversed(range(len(children))):  # longer prefixes come first
        continued = sorted((id, state_of[child]) for id, child in children[prefix].items())
        state_of[prefix] = states.setdefault((prefix in complete, tuple(continued)), len(states))
    last = len(states) - 1  # of the empty prefix, which has the number 0 in the result
    moves: dict[int, list[tuple[int, int]]] = {}  # by token: from which state to which
    for (_, endings), state in states.items():
        for id, reached in endings:
            moves.setdefault(id, []).append((last - state, last - reached))
    classes = {tuple(pairs): 1 for pairs in moves.values()}
    classes = {pairs: number for number, pairs in enumerate(classes, start=1)}
    class_of = np.zeros(size, dtype=np.int64)
    class_of[list(moves)] = [classes[tuple(pairs)] for pairs in moves.values()]
    dead = len(states)
    spend(entries=(dead + 1) * (len(classes) + 1))
    table = np.full((dead + 1, len(classes) + 1), dead)
    for pairs, number in classes.items():
        before, after = zip(*pairs, strict=True)
        table[list(before), number] = after
    accepting = np.zeros(dead + 1, dtype=bool)
    accepting[[last - state for (ends, _), state in states.items() if ends]] = True
    return Automaton(table, accepting, class_of)


def one_of(ids: Collection[int], others: bool, size: int) -> Automaton:
    """Accepts each single token in `ids` or, with `others`, each single token not in `ids`."""
    class_of = np.full(size, int(others))
    class_of[list(ids)] = int(not others)
    return Automaton(np.array([[2, 1], [2, 2], [2, 2]]), np.arange(3) == 1, class_of)


def containing(ids: Sequence[int], size: int) -> Automaton:
    """Accepts sequences in which the phrase `ids` occurs."""
    automaton = ending_with(ids, size)
    automaton.transitions[-1] = len(ids)
    return automaton


def in_order(phrases: Sequence[Sequence[int]], size: int) -> Automaton:
    """Accepts sequences in which each phrase occurs after the end of the one before it.

    The automata of the phrases one after the other: each begins where the one before it accepts.
    """
    class_of, letters = classes_of([id for ids in phrases for id in ids], size)
    states = sum(map(len, phrases)) + 1
    spend(entries=states * (len(letters) + 1))
    table, first = np.empty((states, len(letters) + 1), dtype=np.int64), 0
    for ids in phrases:
        part = ending_with(ids, size)
        rows = part.transitions[:-1] + first  # its last state is the first of the next
        own = np.full(len(letters) + 1, part.transitions.shape[1] - 1)
        own[[letters[id] for id in ids]] = part.class_of[list(ids)]
        table[first : first + len(ids)] = rows[:, own]
        first += len(ids)
    table[first] = first
    return Automaton(table, np.arange(states) == first, class_of)


def ending_with(ids: Sequence[int], size: int) -> Automaton:
    """Accepts sequences that end with the phrase `ids`.

    The automaton of Knuth, Morris and Pratt. A state is the length of the longest prefix of the
    phrase that the sequence ends with. `border` is the longest shorter prefix that it also ends
    with; transitions by tokens that do not continue the phrase are those of the border.
    """
    class_of, letters = classes_of(ids, size)
    spend(entries=(len(ids) + 1) * (len(letters) + 1))
    table = np.zeros((len(ids) + 1, len(letters) + 1), dtype=np.int64)
    border = 0
    for place in range(len(ids) + 1):
        table[place] = table[border] if place else 0
        if place < len(ids):
            letter = letters[ids[place]]
            next_border = int(table[border, letter]) if place else 0
            table[place, letter] = place + 1
            border = next_border
    return Automaton(table, np.arange(len(ids) + 1) == len(ids), class_of)


def containing_none(phrases: list[list[int]], size: int) -> Automaton:
    """Accepts sequences in which none of the phrases occurs.

    The automaton of Aho and Corasick. A state is the longest prefix of any phrase that the sequence
    ends with; `border` is the next shorter one, as in `ending_with`. The last state is dead: a
    phrase has occurred. Phrases of one token have a class in common that leads to it.
    """
    single = {ids[0] for ids in phrases if len(ids) == 1}
    longer = [ids for ids in phrases if not single.intersection(ids)]  # the others add nothing
    class_of, letters = classes_of([id for ids in longer for id in ids], size)
    class_of[list(single)] = len(letters) + 1
    children: list[dict[int, int]] = [{}]  # of each prefix, by letter
    complete: set[int] = set()  # prefixes that end with a whole phrase
    for ids in longer:
        state = 0
        for id in ids:
            state = children[state].setdefault(letters[id], len(children))
            if state == len(children):
                children.append({})
        complete.add(state)
    spend(entries=(len(children) + 1) * (len(letters) + 2))
    table = np.zeros((len(children) + 1, len(letters) + 1 + bool(single)), dtype=np.int64)
    border = [0] * len(children)
    queue = [0]
    for state in queue:  # breadth-first; the list grows during the loop
        table[state] = table[border[state]] if state else 0
        if border[state] in complete:
            complete.add(state)
        for letter, child in children[state].items():
            border[child] = int(table[state, letter]) if state else 0
            table[state, letter] = child
            queue.append(child)
    dead = len(children)
    table[np.isin(table, list(complete))] = dead
    table[:, len(letters) + 1 :] = dead
    table[dead] = dead
    return Automaton(table, np.arange(len(table)) != dead, class_of)


def classes_of(ids: Collection[int], size: int) -> tuple[np.ndarray, dict[int, int]]:
    """A class for each different token in `ids`, and the last class for all other tokens.

    Returns the class (V,) of each token, and the classes of `ids` by token.
    """
    letters = {token: letter for letter, token in enumerate(dict.fromkeys(ids))}
    class_of = np.full(size, len(letters))
    class_of[list(letters)] = list(letters.values())
    return class_of, letters
