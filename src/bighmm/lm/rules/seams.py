"""Where a text is put together from parts, no word may run on from one part into the next.

A rule about words takes the beginning and the end of its part for boundaries. They are, if what
stands there keeps apart: one of both sides is no character of a word (`spelling.in_word`). A
character of which a token holds only a part counts as one of a word. Tokens of word vocabularies
are whole words, and those of which is not known what they spell are left as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from bighmm.data.tokenizers import Tokenizer
from bighmm.infer.rules.rules import Rule, automaton
from bighmm.lm.rules.spelling import in_word, subword_contents

NOTHING, WORD, OTHER = range(3)  # what a token has at its beginning or at its end


def touches(text: str) -> bool:
    """Whether a text ends within or right after a word."""
    return text != "" and in_word(text[-1])


def keeps_apart(tokenizer: Tokenizer) -> Rule | None:
    """The text does not begin with a character of a word; None where no word can run on."""
    kinds = _kinds(tokenizer, first=True)
    if kinds is None:
        return None
    # 0: nothing yet; 1: it has begun otherwise
    return automaton([[0, -1, 1], [1, 1, 1]], [0, 1], kinds).called("words of its own")


def ends_apart(tokenizer: Tokenizer, after_word: bool) -> Rule | None:
    """The text does not end with a character of a word; with `after_word` it follows one."""
    kinds = _kinds(tokenizer, first=False)
    if kinds is None:
        return None
    # 0: another character, or none, stood last; 1: one of a word
    table = [[0, 1, 0], [1, 1, 0]]
    return automaton(table, [0], kinds, int(after_word)).called("words of its own")


def opens_with_word(tokenizer: Tokenizer, ids: Sequence[int]) -> bool:
    """Whether the first character that these tokens spell is one of a word."""
    kinds = _kinds(tokenizer, first=True)
    if kinds is None:
        return False
    spelt = [kinds[id] for id in ids if kinds[id] != NOTHING]
    return bool(spelt) and spelt[0] == WORD


def _kinds(tokenizer: Tokenizer, first: bool) -> list[int] | None:
    """What each token (V,) has at its beginning or end; None where tokens are kept apart anyway."""
    contents = subword_contents(tokenizer)
    return None if contents is None else [_kind(content, first) for content in contents]


def _kind(content: bytes | None, first: bool) -> int:
    if not content:
        return NOTHING
    characters = content.decode(errors="replace")
    character = characters[0 if first else -1]
    return WORD if in_word(character) or character == "\N{REPLACEMENT CHARACTER}" else OTHER
