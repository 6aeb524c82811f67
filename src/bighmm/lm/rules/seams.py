"""Rules that keep words apart where a text is put together from parts.

A rule about words takes the beginning and the end of its part for word boundaries. They are, if at
least one of the two characters at the seam is not a word character (`spelling.in_word`). A
character that a token holds only a part of counts as a word character. With a word vocabulary no
rule is needed; where it is not known what tokens spell, there is none.
"""

from __future__ import annotations

from collections.abc import Sequence

from bighmm.data.tokenizers import Tokenizer
from bighmm.infer.rules.rules import Rule, automaton
from bighmm.lm.rules.spelling import in_word, subword_contents

NOTHING, WORD, OTHER = range(3)  # kinds of the first or last character of a token


def touches(text: str) -> bool:
    """Whether the last character of a text is a word character."""
    return text != "" and in_word(text[-1])


def keeps_apart(tokenizer: Tokenizer) -> Rule | None:
    """The text does not begin with a word character; None where that is not needed."""
    kinds = _kinds(tokenizer, first=True)
    if kinds is None:
        return None
    # states: 0, no character yet; 1, the first was not a word character
    return automaton([[0, -1, 1], [1, 1, 1]], [0, 1], kinds).called("words of its own")


def ends_apart(tokenizer: Tokenizer, after_word: bool) -> Rule | None:
    """The text does not end with a word character.

    after_word: whether an empty text follows one. None where the rule is not needed.
    """
    kinds = _kinds(tokenizer, first=False)
    if kinds is None:
        return None
    # states: whether the last character was a word character
    table = [[0, 1, 0], [1, 1, 0]]
    return automaton(table, [0], kinds, int(after_word)).called("words of its own")


def opens_with_word(tokenizer: Tokenizer, ids: Sequence[int]) -> bool:
    """Whether the first character that these tokens spell is a word character."""
    kinds = _kinds(tokenizer, first=True)
    if kinds is None:
        return False
    spelt = [kinds[id] for id in ids if kinds[id] != NOTHING]
    return bool(spelt) and spelt[0] == WORD


def _kinds(tokenizer: Tokenizer, first: bool) -> list[int] | None:
    """The kind of each token's (V,) first or last character; None where no rule is needed."""
    contents = subword_contents(tokenizer)
    return None if contents is None else [_kind(content, first) for content in contents]


def _kind(content: bytes | None, first: bool) -> int:
    if not content:
        return NOTHING
    characters = content.decode(errors="replace")
    character = characters[0 if first else -1]
    return WORD if in_word(character) or character == "\N{REPLACEMENT CHARACTER}" else OTHER
