"""Automata of sequences of token ids: one sequence, one token, or phrases that occur or do not.

Each function takes the size of the vocabulary last. The automata need not be minimal.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from bighmm.infer.rules.automaton import Automaton


def exactly(ids: Sequence[int], size: int) -> Automaton:
    """Accepts the one sequence `ids`. A state is the length of the part read; the last is dead."""
    class_of, letters = classes_of(ids, size)
    dead = len(ids) + 1
    table = np.full((len(ids) + 2, len(letters) + 1), dead)
    table[np.arange(len(ids)), class_of[list(ids)]] = np.arange(len(ids)) + 1
    return Automaton(table, np.arange(len(ids) + 2) == len(ids), class_of)


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


def ending_with(ids: Sequence[int], size: int) -> Automaton:
    """Accepts sequences that end with the phrase `ids`.

    The automaton of Knuth, Morris and Pratt. A state is the length of the longest prefix of the
    phrase that the sequence ends with. `border` is the longest shorter prefix that it also ends
    with; transitions by tokens that do not continue the phrase are those of the border.
    """
    class_of, letters = classes_of(ids, size)
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
