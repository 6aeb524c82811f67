"""Spaces between words: automata that read the words of a vocabulary with the spaces of `decode`.

Whether `decode` puts a space before a word depends on the word, on the word before it, and on which
straight quotes are open, because they are opening and closing quotes in turn. This is the *spacing*
so far. It has few values; the automaton with spaces is the product of an automaton and the spacing.

Letters: V vocabulary, S states, A classes of tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bighmm.data.tokenizers import UNKNOWN, Words
from bighmm.infer.rules.automaton import Automaton, Ints, number_pairs


def with_spaces(automaton: Automaton, after_space: Ints, tokenizer: Words) -> Automaton:
    """The automaton that reads words with the spaces that the tokenizer puts between them.

    automaton: reads words without spaces between them.
    after_space: (S,) the state after a space, from each of its states.
    """
    kinds: dict[_Kind, int] = {}
    kind_of = [kinds.setdefault(_kind(tokenizer, i), len(kinds)) for i in range(tokenizer.size)]
    class_of, columns, kind = number_pairs(automaton.class_of, np.array(kind_of))
    states = np.arange(automaton.num_states)
    spacings = [_Spacing(True, frozenset())]
    tables = []
    for spacing in spacings:  # the list grows during the loop
        steps = [spacing.step(each) for each in kinds]
        reached = dict.fromkeys(after for _, after in steps)
        spacings += [after for after in reached if after not in spacings]
        space = np.array([space for space, _ in steps])[kind]  # (A,)
        number = np.array([spacings.index(after) for _, after in steps])[kind]
        before_word = np.where(space, after_space[:, None], states[:, None])  # (S, A)
        tables.append(automaton.transitions[before_word, columns] + number * len(states))
    return Automaton(np.concatenate(tables), np.tile(automaton.accepting, len(tables)), class_of)


class _Kind(NamedTuple):
    """Where a word takes no spaces."""

    no_space_before: bool
    no_space_after: bool
    quote: str | None  # the word itself, if it is an opening and a closing quote in turn


class _Spacing(NamedTuple):
    """What the space before the next word depends on."""

    no_space: bool  # the next word follows without a space
    open_quotes: frozenset[str]

    def step(self, kind: _Kind) -> tuple[bool, _Spacing]:
        """Whether there is a space before a word of this kind, and the spacing after the word."""
        closes = kind.quote in self.open_quotes
        space = not (self.no_space or kind.no_space_before or closes)
        if kind.quote is None:
            return space, _Spacing(kind.no_space_after, self.open_quotes)
        return space, _Spacing(not closes, self.open_quotes ^ {kind.quote})


def _kind(tokenizer: Words, token: int) -> _Kind:
    """The kind of a word, from how the tokenizer writes it beside the mark of unknown words."""
    word, other = tokenizer.token(token), tokenizer.unknown
    if other is None or token in (tokenizer.end, other):
        return _Kind(False, False, None)
    before = tokenizer.decode([other, token]) == f"{UNKNOWN}{word}"
    after = tokenizer.decode([token, other]) == f"{word}{UNKNOWN}"
    in_turn = not before and tokenizer.decode([token, other, token]) == f"{word}{UNKNOWN}{word}"
    return _Kind(before, after, word if in_turn else None)
