"""Rules about phrases as whole words of the text, for subword tokenizers.

A phrase occurs as whole words if there is no word character (`spelling.in_word`: letters, digits
and `_`) right before and right after it. At an end where the phrase itself has another character,
such as a full stop, any character may follow. An apostrophe is not a word character, so "cat"
occurs in "cat's". The beginning and the end of a sequence are boundaries.

The automaton of Knuth, Morris and Pratt, restricted to phrases that begin at boundaries, reads the
bytes of the text, and every token is run through it. The states between two tokens are prefixes of
the phrase that the text ends with.

- A rule that forbids a phrase must find it however the text is divided into tokens. It remembers
  every prefix, so it has about as many states as the phrase has bytes.
- A rule that requires a phrase remembers only those prefixes after which the tokenizer itself
  divides the phrase, so it has about as many states as the phrase has tokens. Only texts with the
  phrase satisfy it. All texts with the phrase that are divided as the tokenizer does satisfy it;
  texts that are divided in another way may not.

If a token holds only a part of a character, it is unknown whether that is a word character. Beside
a required phrase it counts as one, beside a forbidden phrase it does not. So no rule is satisfied
by mistake.
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
    INCOMPLETE,
    SPACE,
    SYMBOLS,
    TokenSymbols,
    in_word,
    over_tokens,
    subword_bytes,
    symbols_of,
)

# Texts around a phrase in which the tokenizer may divide the phrase in different ways.
SURROUNDINGS = (("", ""), (" ", ""), ("(", ""), ("", "."), (" ", "."), ("(", "."))

Where = Literal["anywhere", "first", "last"]


def contains(tokenizer: Tokenizer, *phrases: str) -> Rule:
    """The rule that requires the phrases in this order, each after the end of the one before it."""
    return _rule(tokenizer, phrases, "anywhere")


def may_contain(tokenizer: Tokenizer, phrase: str) -> Rule:
    """The rule whose negation forbids the phrase, however the text is divided into tokens."""
    return _rule(tokenizer, [phrase], "anywhere", to_forbid=True)


def starts_with(tokenizer: Tokenizer, phrase: str) -> Rule:
    """The rule that the text begins with the phrase, or with a space and the phrase."""
    return _rule(tokenizer, [phrase], "first")


def ends_with(tokenizer: Tokenizer, phrase: str) -> Rule:
    """The rule that the text ends with the phrase."""
    return _rule(tokenizer, [phrase], "last")


def can_be_spelled(tokenizer: Tokenizer, phrase: str) -> bool:
    """Whether the rules above can be made for a phrase.

    The tokenizer must have subwords whose spelling is known, and the phrase must have no marks and
    not only spaces.
    """
    contents = subword_bytes(tokenizer)
    if contents is None:
        return False
    parts = [contents[token] for token in tokenizer.encode(phrase)]
    return None not in parts and any((part or b"").strip(b" ") for part in parts)


@dataclass(frozen=True)
class _Phrase:
    """A phrase as bytes."""

    content: bytes
    cuts: Collection[int]  # lengths of the prefixes that are remembered at the end of a token
    begins_word: bool  # whether its first character is a word character
    ends_word: bool  # whether its last character is a word character

    @property
    def size(self) -> int:
        return len(self.content)

    def read(self, prefixes: Collection[int], byte: int) -> frozenset[int]:
        """The lengths of prefixes that the text ends with after `byte`, from those before it."""
        return frozenset(n + 1 for n in prefixes if n < self.size and self.content[n] == byte)


class _State(NamedTuple):
    """A state of the automaton over bytes."""

    phrases_done: int  # number of phrases that have occurred
    boundary: bool  # whether a word can begin here; with "first", whether nothing was read yet
    prefixes: frozenset[int]  # lengths of prefixes of the next phrase that the text ends with


_NONE: frozenset[int] = frozenset()


def _rule(
    tokenizer: Tokenizer, phrases: Sequence[str], where: Where, to_forbid: bool = False
) -> Rule:
    """The rule of phrases; `to_forbid` says that its negation will be used."""
    tokens = symbols_of(tokenizer)
    in_bytes = [_in_bytes(tokenizer, tokens, phrase, every_cut=to_forbid) for phrase in phrases]
    return Rule(
        lambda _: _automaton(in_bytes, tokens, where, incomplete_in_word=not to_forbid),
        f"{where} {list(phrases)}",
        size=tokenizer.size,
    )


def _in_bytes(tokenizer: Tokenizer, tokens: TokenSymbols, phrase: str, every_cut: bool) -> _Phrase:
    """The bytes of a phrase, with the cuts that the tokenizer makes, or with every cut."""
    phrase = phrase.strip()
    content = _text(tokens, tokenizer.encode(phrase)).strip(b" ")
    cuts = set(range(len(content) + 1) if every_cut else (0, len(content)))
    for before, after in SURROUNDINGS if not every_cut else ():
        ids = tokenizer.encode(f"{before}{phrase}{after}")
        first = _text(tokens, ids).find(content)
        for n in range(1, len(ids) if first >= 0 else 0):
            cut = len(_text(tokens, ids[:n])) - first
            if 0 < cut < len(content):
                cuts.add(cut)
    characters = content.decode(errors="replace")
    return _Phrase(content, cuts, in_word(characters[0]), in_word(characters[-1]))


def _text(tokens: TokenSymbols, ids: Sequence[int]) -> bytes:
    return b"".join(tokens.contents[token] or b"" for token in ids)


def _automaton(
    phrases: list[_Phrase], tokens: TokenSymbols, where: Where, incomplete_in_word: bool
) -> Automaton:
    """The automaton over tokens, by way of an automaton over bytes.

    The latter has two letters for each byte of the phrases, and two for all other bytes: in a word
    character or not. Its last letter is the end of a token.

    incomplete_in_word: whether a part of a character counts as a word character.
    """
    own = sorted({SPACE, *(byte for phrase in phrases for byte in phrase.content)})
    place = np.full(BYTES, len(own))
    place[own] = np.arange(len(own))
    end_of_token = 2 * len(own) + 2
    letter_of = np.full(SYMBOLS, 2 * len(own))  # marks are read as a byte between words
    for kind in (IN_WORD, BETWEEN, INCOMPLETE):
        inside = kind == IN_WORD or (kind == INCOMPLETE and incomplete_in_word)
        letter_of[kind * BYTES : (kind + 1) * BYTES] = 2 * place + inside
    read = _reader(phrases, where)

    def step(state: _State, letter: int) -> _State:
        if letter == end_of_token:
            if state.phrases_done == len(phrases):
                return state
            cuts = phrases[state.phrases_done].cuts
            return state._replace(prefixes=state.prefixes.intersection(cuts))
        return read(state, own[letter // 2] if letter < 2 * len(own) else -1, bool(letter % 2))

    def accepts(state: _State) -> bool:
        if state.phrases_done < len(phrases) - 1:
            return False
        return state.phrases_done == len(phrases) or phrases[-1].size in state.prefixes

    first = _State(0, True, frozenset({0}) if where == "first" else _NONE)
    over_bytes = explore(first, step, accepts, np.arange(end_of_token + 1))
    table, letters = over_bytes.transitions, over_bytes.class_of
    at_end = table[:, letters[end_of_token]]
    return over_tokens(table, over_bytes.accepting, letters[letter_of], tokens, at_end)


def _reader(phrases: list[_Phrase], where: Where) -> Callable[[_State, int, bool], _State]:
    """The transition function of the automaton over bytes.

    It takes a state, a byte, and whether the byte belongs to a word character.
    """

    def read(state: _State, byte: int, inside: bool) -> _State:
        if state.phrases_done == len(phrases):
            return state
        phrase = phrases[state.phrases_done]
        if where != "last" and phrase.size in state.prefixes and not inside:
            return read(_State(state.phrases_done + 1, False, _NONE), byte, inside)
        if where == "first":
            if state.boundary and byte == SPACE and phrase.content[0] != SPACE:
                return _State(0, False, state.prefixes)
            prefixes = phrase.read(state.prefixes, byte)
        else:
            can_begin = state.boundary or not phrase.begins_word
            prefixes = phrase.read(state.prefixes | ({0} if can_begin else _NONE), byte)
        if where != "last" and phrase.size in prefixes and not phrase.ends_word:
            return _State(state.phrases_done + 1, True, _NONE)
        return _State(state.phrases_done, where != "first" and not inside, prefixes)

    return read
