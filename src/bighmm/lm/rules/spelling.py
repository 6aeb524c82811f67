"""What tokens spell, and automata over bytes as automata over tokens.

Letters: V vocabulary, S states of an automaton over bytes, A its letters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from bighmm.data.tokenizers import Subwords, Tokenizer
from bighmm.infer.rules.automaton import Automaton, Bools, Ints, number_pairs

BYTES = 256
SPACE = ord(" ")
# What a byte belongs to: a word character, another one, or one that other tokens complete.
IN_WORD, BETWEEN, UNSURE = range(3)
MARK = 3 * BYTES  # the symbol of a token that spells nothing
SYMBOLS = MARK + 1

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_NO_WORD = (
    (0x0E00, 0x109F),  # Thai, Lao, Tibetan, Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x3040, 0x30FF),  # kana
    (0x3400, 0x9FFF),  # Chinese characters
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
    (0xFE00, 0xFE0F),  # variation selectors, mostly of emoji
)


@dataclass(frozen=True, eq=False)
class Spelled:
    """What each token spells, also as symbols: byte + 256 · what the byte belongs to.

    `symbols` has the tokens sorted by length, the longest first (`order`): at place i the first
    `counts[i]` tokens have a symbol.
    """

    contents: list[bytes | None]
    order: Ints  # (V,)
    symbols: NDArray[np.int16]  # (longest, V)
    counts: Ints  # (longest,)


_KNOWN: WeakKeyDictionary[Tokenizer, Spelled] = WeakKeyDictionary()


def spelled(tokenizer: Tokenizer) -> Spelled:
    """What all tokens spell, cached for each tokenizer; raises ValueError as `spelling` does."""
    if tokenizer not in _KNOWN:
        contents = spelling(tokenizer)
        single = (i for i, content in enumerate(contents) if content and len(content) == 1)
        # Decoders replace such bytes, unless adjacent ones make a valid character.
        unsure = {i for i in single if _BYTE.fullmatch(tokenizer.token(i))}
        _KNOWN[tokenizer] = _in_symbols(contents, unsure)
    return _KNOWN[tokenizer]


def subword_contents(tokenizer: Tokenizer) -> list[bytes | None] | None:
    """What each subword spells; None for a word vocabulary, and where that is not known."""
    if tokenizer.kind == "words":
        return None
    try:
        return spelled(tokenizer).contents
    except ValueError:
        return None


def spelling(tokenizer: Tokenizer) -> list[bytes | None]:
    """What each token adds to the text; None for marks, which are not text.

    Words come without the spaces between them (see `spacing.py`). Raises ValueError for a kind of
    tokenizer that is not known.
    """
    marks = {tokenizer.end, tokenizer.unknown}
    if isinstance(tokenizer, Subwords):
        marks |= tokenizer.ids_without_text
    spell = _spell(tokenizer)
    return [None if i in marks else spell(tokenizer.token(i)) for i in range(tokenizer.size)]


@cache
def in_word(character: str) -> bool:
    """Whether a character joins letters beside it to one word: letters, marks, digits and `_`.

    Scripts without spaces between words have no such characters.
    """
    code = ord(character)
    if any(first <= code <= last for first, last in _NO_WORD):
        return False
    return character == "_" or unicodedata.category(character)[0] in "LMN"


def over_tokens(
    table: Ints, accepting: Bools, letter_of: Ints, spelled: Spelled, at_end: Ints | None = None
) -> Automaton:
    """The automaton over tokens that an automaton over letters makes.

    table: (S, A) the state that each letter leads to.
    letter_of: (SYMBOLS,) the letter of each symbol.
    at_end: (S,) the state that the end of a token leads to; without it, the same state.
    """
    stays = np.arange(len(table))
    at_end = stays if at_end is None else at_end
    between = np.unique(np.r_[0, at_end])  # the states in which a token can begin
    flat, letters = table.astype(np.int32).ravel() * table.shape[1], letter_of.astype(np.int32)
    # The state that every token leads to, as the offset of its row in `flat`.
    reached = np.repeat((between * table.shape[1]).astype(np.int32)[:, None], len(spelled.order), 1)
    for symbols, count in zip(spelled.symbols, spelled.counts, strict=True):
        reached[:, :count] = flat[reached[:, :count] + letters[symbols[:count]]]
    number = np.zeros(len(table), dtype=np.int64)
    number[between] = np.arange(len(between))
    by_token = number[at_end][reached // table.shape[1]]
    class_of = np.zeros(len(spelled.order), dtype=np.int64)
    for row in by_token:
        class_of, _, _ = number_pairs(class_of, row)
    some_token = np.empty(int(class_of.max()) + 1, dtype=np.int64)
    some_token[class_of] = np.arange(len(class_of))
    columns = by_token[:, some_token]
    in_place = np.empty_like(class_of)
    in_place[spelled.order] = class_of
    return Automaton(columns, accepting[between], in_place)


def _in_symbols(contents: list[bytes | None], unsure: set[int]) -> Spelled:
    sizes = np.array([1 if content is None else len(content) for content in contents])
    order = np.argsort(-sizes, kind="stable")
    kinds = [bytes([UNSURE]) if i in unsure else _kinds(c) for i, c in enumerate(contents)]
    plain = b"".join(b"\0" if content is None else content for content in contents)
    flat = np.frombuffer(plain, np.uint8).astype(np.int16)
    flat += np.frombuffer(b"".join(kinds), np.uint8).astype(np.int16) * BYTES
    counts = np.array([int((sizes > place).sum()) for place in range(sizes.max())])
    symbols = np.zeros((len(counts), len(contents)), dtype=np.int16)
    firsts = (np.cumsum(sizes) - sizes)[order]
    for place, count in enumerate(counts):
        symbols[place, :count] = flat[firsts[:count] + place]
    return Spelled(contents, order, symbols, counts)


def _kinds(content: bytes | None) -> bytes:
    if content is None:
        return bytes([MARK // BYTES])
    return b"".join(map(_kinds_of_character, content.decode(errors="surrogateescape")))


@cache
def _kinds_of_character(character: str) -> bytes:
    if "\ud800" <= character <= "\udfff":  # a byte that is no whole character
        return bytes([UNSURE])
    return bytes([IN_WORD if in_word(character) else BETWEEN]) * len(character.encode())


def _spell(tokenizer: Tokenizer) -> Callable[[str], bytes | None]:
    if tokenizer.kind == "words":
        return str.encode
    if not isinstance(tokenizer, Subwords):
        return _sentence_piece
    steps = tokenizer.decoder_steps
    if "ByteLevel" in steps:
        byte_of = _byte_alphabet()
        return lambda piece: bytes(byte_of[sign] for sign in piece if sign in byte_of)
    if "Metaspace" in steps or "Replace" in steps:
        return _byte_or_characters if "ByteFallback" in steps else _characters
    raise ValueError(
        "rules about text need a tokenizer of words, of bytes (ByteLevel) or of pieces with a mark "
        f"for spaces (Metaspace), not one that decodes by {' and '.join(steps) or 'nothing'}"
    )


def _sentence_piece(piece: str) -> bytes | None:
    """A byte, a mark, or characters."""
    is_mark = re.fullmatch(r"<[^<>]+>", piece) and not _BYTE.fullmatch(piece)
    return None if is_mark else _byte_or_characters(piece)


def _byte_or_characters(piece: str) -> bytes:
    found = _BYTE.fullmatch(piece)
    return bytes([int(found[1], 16)]) if found else _characters(piece)


def _characters(piece: str) -> bytes:
    return piece.replace("▁", " ").encode()


def _byte_alphabet() -> dict[str, int]:
    """How byte-level tokenizers write bytes: printable ones as they are, others from U+0100 on."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    shifted = {chr(256 + place): byte for place, byte in enumerate(others)}
    return {chr(byte): byte for byte in plain} | shifted
