"""Phrases as whole words of the text that subword tokens spell.

A phrase is there as whole words if no character of a word (`spelling.in_word`: letters, digits and
`_`) stands right before its first or right after its last one; where the phrase itself begins or
ends with another character, such as a full stop, anything may stand there. An apostrophe belongs to
no word: "cat" is in "cat's". The beginning and the end of a sequence are boundaries.

An automaton reads the bytes of the text (the one of Knuth, Morris and Pratt, which begins only at
boundaries), and every token is run through it. It knows every way to cut a text into tokens, with
as many states as the phrase has bytes and a few more. That is what a rule against a phrase needs.
One that asks for it has fewer: between two tokens, only those beginnings of the phrase are
remembered after which the tokenizer itself cuts. Such a rule is never satisfied without the words,
and always by a text as the tokenizer writes it; by other ways to write the words it may not be.

Some tokens hold a part of a character. Beside a phrase that must occur it counts as part of a word,
beside one that must not it does not: where a rule errs, it errs to the safe side.
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
    """The phrase occurs, whatever tokens it is made of; in case of doubt it does."""
    return _rule(tokenizer, [phrase], "anywhere", in_doubt=True)


def begins(tokenizer: Tokenizer, phrase: str) -> Rule:
    """The text begins with the phrase, or with a space and the phrase."""
    return _rule(tokenizer, [phrase], "first")


def closes(tokenizer: Tokenizer, phrase: str) -> Rule:
    """The text ends with the phrase."""
    return _rule(tokenizer, [phrase], "last")


def is_spelled(tokenizer: Tokenizer, phrase: str) -> bool:
    """Whether the phrase is text, in a vocabulary of subwords of which is known what they spell."""
    contents = subword_contents(tokenizer)
    if contents is None:
        return False
    found = [contents[token] for token in tokenizer.encode(phrase)]
    return None not in found and any((content or b"").strip(b" ") for content in found)


@dataclass(frozen=True)
class _Phrase:
    content: bytes
    cuts: Collection[int]  # how much of it may have been read where a token ends
    opens_word: bool  # its first character is one of a word
    ends_word: bool

    @property
    def size(self) -> int:
        return len(self.content)

    def read(self, begun: Collection[int], byte: int) -> frozenset[int]:
        """How much of the phrase the last bytes are, after one more."""
        grown = (n + 1 for n in begun if n < self.size and self.content[n] == byte)
        return frozenset(grown)


class _State(NamedTuple):
    found: int  # how many phrases
    boundary: bool  # whether a word can begin here; with "first", that there is nothing yet
    begun: frozenset[int]  # how much of the next phrase the last bytes are, all that is possible


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

    Two letters for each byte of the phrases and for all others: in a character of a word or not.
    One more, the last, for the end of a token.
    """
    own = sorted({SPACE, *(byte for phrase in phrases for byte in phrase.content)})
    place = np.full(BYTES, len(own))
    place[own] = np.arange(len(own))
    ends = 2 * len(own) + 2
    letter_of = np.full(SYMBOLS, 2 * len(own))  # that of marks, which are between words
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
    """What one byte, and whether it belongs to a character of a word, makes of a state."""

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
