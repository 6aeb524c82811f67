"""The spaces that a word vocabulary writes between words, as part of an automaton.

Whether `decode` puts a space before a word depends on the word, on the one before it, and on which
straight quotes are open, since these open and close by turns. This *spacing* has few values, and
the product of it and an automaton's states is a larger automaton.

Letters: V vocabulary, S states, A classes of tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bighmm.data.tokenizers import UNKNOWN, Words
from bighmm.infer.rules.automaton import Automaton, Ints, number_pairs


class _Kind(NamedTuple):
    """How a word is spaced."""

    closes: bool  # no space stands before it
    opens: bool  # no space stands after it
    quote: str | None  # the word, if it opens and closes by turns


class _Spacing(NamedTuple):
    """What decides about the space before the next word."""

    glued: bool  # the next word follows without a space
    open_quotes: frozenset[str]

    def after(self, kind: _Kind) -> tuple[bool, _Spacing]:
        """Whether a space stands before a word, and the spacing after it."""
        ends = kind.quote in self.open_quotes
        space = not (self.glued or kind.closes or ends)
        if kind.quote is None:
            return space, _Spacing(kind.opens, self.open_quotes)
        return space, _Spacing(not ends, self.open_quotes ^ {kind.quote})


def with_spaces(automaton: Automaton, after_space: Ints, tokenizer: Words) -> Automaton:
    """The automaton over the text that the tokenizer decodes to, with its spaces.

    automaton: reads words without spaces between them.
    after_space: (S,) the state that a space leads to from each of its states.
    """
    kinds: dict[_Kind, int] = {}
    kind_of = [kinds.setdefault(_kind(tokenizer, i), len(kinds)) for i in range(tokenizer.size)]
    class_of, columns, kind = number_pairs(automaton.class_of, np.array(kind_of))
    stays = np.arange(automaton.num_states)
    spacings = [_Spacing(True, frozenset())]
    tables = []
    for spacing in spacings:  # new ones are appended in the loop
        found = [spacing.after(each) for each in kinds]
        reached = dict.fromkeys(after for _, after in found)
        spacings += [after for after in reached if after not in spacings]
        space = np.array([space for space, _ in found])[kind]  # (A,)
        number = np.array([spacings.index(after) for _, after in found])[kind]
        begins = np.where(space, after_space[:, None], stays[:, None])  # (S, A)
        tables.append(automaton.transitions[begins, columns] + number * len(stays))
    return Automaton(np.concatenate(tables), np.tile(automaton.accepting, len(tables)), class_of)


def _kind(tokenizer: Words, token: int) -> _Kind:
    """The kind of a word, from how the tokenizer writes it beside the mark of unknown words."""
    word, other = tokenizer.token(token), tokenizer.unknown
    if other is None or token in (tokenizer.end, other):
        return _Kind(False, False, None)
    closes = tokenizer.decode([other, token]) == f"{UNKNOWN}{word}"
    opens = tokenizer.decode([token, other]) == f"{word}{UNKNOWN}"
    turns = not closes and tokenizer.decode([token, other, token]) == f"{word}{UNKNOWN}{word}"
    return _Kind(closes, opens, word if turns else None)
