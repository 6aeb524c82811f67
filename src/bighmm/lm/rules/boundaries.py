"""Rules that put word boundaries at the beginning and at the end of a text with neighbours.

A rule about words assumes that its text begins and ends at word boundaries. If the text follows a
prefix or precedes a suffix, that is true only if at least one of the two characters beside the cut
is not a word character (`spelling.in_word`). The rules here ensure this. If a token holds only a
part of a character, it counts as a word character.

No rule is needed for a vocabulary of whole words, and none is possible if the spelling of the
tokens is unknown; the functions return None then.
"""

from __future__ import annotations

from collections.abc import Sequence

from bighmm.data.tokenizers import Tokenizer
from bighmm.infer.rules.rules import Rule, automaton
from bighmm.lm.rules.spelling import in_word, subword_bytes

NOTHING, WORD, OTHER = range(3)  # kinds of the first or last character; NOTHING: it has none


def ends_in_word(text: str) -> bool:
    """Whether the last character of a text is a word character."""
    return text != "" and in_word(text[-1])


def begins_outside_word(tokenizer: Tokenizer) -> Rule | None:
    """The rule that a text does not begin with a word character."""
    kinds = _kinds(tokenizer, first=True)
    if kinds is None:
        return None
    # States: 0, no character yet; 1, the first character was not a word character.
    return automaton([[0, -1, 1], [1, 1, 1]], [0, 1], kinds).called("begins outside a word")


def ends_outside_word(tokenizer: Tokenizer, after_word: bool) -> Rule | None:
    """The rule that a text does not end with a word character.

    after_word: whether a word character precedes the text; an empty text counts as ending with it.
    """
    kinds = _kinds(tokenizer, first=False)
    if kinds is None:
        return None
    # States: whether the last character was a word character.
    table = [[0, 1, 0], [1, 1, 0]]
    return automaton(table, [0], kinds, int(after_word)).called("ends outside a word")


def begins_with_word(tokenizer: Tokenizer, ids: Sequence[int]) -> bool:
    """Whether the first character that these tokens spell is a word character."""
    kinds = _kinds(tokenizer, first=True)
    if kinds is None:
        return False
    characters = [kinds[id] for id in ids if kinds[id] != NOTHING]
    return bool(characters) and characters[0] == WORD


def _kinds(tokenizer: Tokenizer, first: bool) -> list[int] | None:
    """The kind (V,) of each token's first or last character; None where there is no rule."""
    contents = subword_bytes(tokenizer)
    return None if contents is None else [_kind(content, first) for content in contents]


def _kind(content: bytes | None, first: bool) -> int:
    if not content:
        return NOTHING
    characters = content.decode(errors="replace")
    character = characters[0 if first else -1]
    return WORD if in_word(character) or character == "\N{REPLACEMENT CHARACTER}" else OTHER
