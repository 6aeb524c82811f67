"""Phrases as whole words of the text that subword tokens spell.

A phrase occurs as whole words if no word character (`spelling.in_word`: letters, digits and `_`)
stands right before its first or right after its last character; where the phrase itself begins or
ends with another character, such as a full stop, anything may stand there. An apostrophe is not a
word character: "cat" is in "cat's". The beginning and the end of a sequence are boundaries.

An automaton reads the bytes of the text (that of Knuth, Morris and Pratt, which begins only at
boundaries), and every token is run through it. It accepts every way to cut a text into tokens, with
about as many states as the phrase has bytes. A rule against a phrase needs that. A rule that asks
for a phrase needs fewer states: between two tokens it remembers only those beginnings of the phrase
after which the tokenizer itself cuts. Such a rule is never satisfied without the words, and always
by a text as the tokenizer writes it; other ways to write the words may not satisfy it.

Some tokens hold a part of a character. Beside a phrase that must occur such a part counts as a word
character, beside one that must not occur it does not, so that no rule is satisfied by mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from bighmm.data.tokenizers import Tokenizer
from bighmm.infer.rules.automaton import Automaton, explore
from bighmm.infer.rules.rules import Rule
from bighmm.lm.rules.spelling import (
    BETWEEN,
    BYTES,
    IN_WORD,
    SPACE,
    SYMBOLS,
    UNSURE,
    Spelled,
    in_word,
    over_tokens,
    spelled,
    subword_contents,
)

AROUND = (("", ""), (" ", ""), ("(", ""), ("", "."), (" ", "."), ("(", "."))

Where = Literal["anywhere", "first", "last"]


def occur(tokenizer: Tokenizer, *phrases: str) -> Rule:
    """The phrases occur in this order, each after the end of the one before it."""
    return _rule(tokenizer, phrases, "anywhere")


def may_occur(tokenizer: Tokenizer, phrase: str) -> Rule:
    """The phrase occurs, whatever tokens it is made of; undecidable cases count as occurrences."""
    return _rule(tokenizer, [phrase], "anywhere", in_doubt=True)


def begins(tokenizer: Tokenizer, phrase: str) -> Rule:
    """The text begins with the phrase, or with a space and the phrase."""
    return _rule(tokenizer, [phrase], "first")


def closes(tokenizer: Tokenizer, phrase: str) -> Rule:
    """The text ends with the phrase."""
    return _rule(tokenizer, [phrase], "last")


def is_spelled(tokenizer: Tokenizer, phrase: str) -> bool:
    """Whether the phrase is text in a subword vocabulary whose spelling is known."""
    contents = subword_contents(tokenizer)
    if contents is None:
        return False
    found = [contents[token] for token in tokenizer.encode(phrase)]
    return None not in found and any((content or b"").strip(b" ") for content in found)


@dataclass(frozen=True)
class _Phrase:
    """A phrase in bytes."""

    content: bytes
    cuts: Collection[int]  # how many of its bytes may have been read where a token ends
    opens_word: bool  # its first character is a word character
    ends_word: bool  # its last character is one

    @property
    def size(self) -> int:
        return len(self.content)

    def read(self, begun: Collection[int], byte: int) -> frozenset[int]:
        """The lengths of the phrase's prefixes that the text ends with, after one more byte."""
        grown = (n + 1 for n in begun if n < self.size and self.content[n] == byte)
        return frozenset(grown)


class _State(NamedTuple):
    """What has been read so far."""

    found: int  # phrases
    boundary: bool  # whether a word can begin here; with "first", whether nothing was read yet
    begun: frozenset[int]  # lengths of the next phrase's prefixes that the text ends with


_NONE: frozenset[int] = frozenset()


def _rule(
    tokenizer: Tokenizer, phrases: Sequence[str], where: Where, in_doubt: bool = False
) -> Rule:
    known = spelled(tokenizer)
    prepared = [_prepare(tokenizer, known, phrase, every=in_doubt) for phrase in phrases]
    return Rule(
        lambda _: _automaton(prepared, known, where, unsure_in_word=not in_doubt),
        f"{where} {list(phrases)}",
        size=tokenizer.size,
    )


def _prepare(tokenizer: Tokenizer, known: Spelled, phrase: str, every: bool) -> _Phrase:
    """The phrase as the tokenizer writes it, cut where it does so, or at every byte."""
    phrase = phrase.strip()
    content = _text(known, tokenizer.encode(phrase)).strip(b" ")
    cuts = set(range(len(content) + 1) if every else (0, len(content)))
    for before, after in AROUND if not every else ():
        ids = tokenizer.encode(f"{before}{phrase}{after}")
        first = _text(known, ids).find(content)
        for n in range(1, len(ids) if first >= 0 else 0):
            cut = len(_text(known, ids[:n])) - first
            if 0 < cut < len(content):
                cuts.add(cut)
    characters = content.decode(errors="replace")
    return _Phrase(content, cuts, in_word(characters[0]), in_word(characters[-1]))


def _text(known: Spelled, ids: Sequence[int]) -> bytes:
    return b"".join(known.contents[token] or b"" for token in ids)


def _automaton(
    phrases: list[_Phrase], known: Spelled, where: Where, unsure_in_word: bool
) -> Automaton:
    """The automaton over bytes, and then over tokens.

    It has two letters for each byte of the phrases, and two for all other bytes: in a word
    character or not. The last letter is the end of a token.
    """
    own = sorted({SPACE, *(byte for phrase in phrases for byte in phrase.content)})
    place = np.full(BYTES, len(own))
    place[own] = np.arange(len(own))
    ends = 2 * len(own) + 2
    letter_of = np.full(SYMBOLS, 2 * len(own))  # of marks, which are between words
    for kind in (IN_WORD, BETWEEN, UNSURE):
        inside = kind == IN_WORD or (kind == UNSURE and unsure_in_word)
        letter_of[kind * BYTES : (kind + 1) * BYTES] = 2 * place + inside
    read = _reader(phrases, where)

    def step(state: _State, letter: int) -> _State:
        if letter == ends:
            if state.found == len(phrases):
                return state
            return state._replace(begun=state.begun.intersection(phrases[state.found].cuts))
        return read(state, own[letter // 2] if letter < 2 * len(own) else -1, bool(letter % 2))

    def accepts(state: _State) -> bool:
        if state.found < len(phrases) - 1:
            return False
        return state.found == len(phrases) or phrases[-1].size in state.begun

    first = _State(0, True, frozenset({0}) if where == "first" else _NONE)
    over_bytes = explore(first, step, accepts, np.arange(ends + 1))
    table, letters = over_bytes.transitions, over_bytes.class_of
    at_end = table[:, letters[ends]]
    return over_tokens(table, over_bytes.accepting, letters[letter_of], known, at_end)


def _reader(phrases: list[_Phrase], where: Where) -> Callable[[_State, int, bool], _State]:
    """The function from a state, a byte and whether it is in a word character to the next state."""

    def read(state: _State, byte: int, inside: bool) -> _State:
        if state.found == len(phrases):
            return state
        phrase = phrases[state.found]
        if where != "last" and phrase.size in state.begun and not inside:
            return read(_State(state.found + 1, False, _NONE), byte, inside)
        if where == "first":
            if state.boundary and byte == SPACE and phrase.content[0] != SPACE:
                return _State(0, False, state.begun)
            begun = phrase.read(state.begun, byte)
        else:
            can_begin = state.boundary or not phrase.opens_word
            begun = phrase.read(state.begun | ({0} if can_begin else _NONE), byte)
        if where != "last" and phrase.size in begun and not phrase.ends_word:
            return _State(state.found + 1, True, _NONE)
        return _State(state.found, where != "first" and not inside, begun)

    return read
