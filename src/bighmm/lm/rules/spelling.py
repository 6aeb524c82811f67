"""The bytes that tokens add to a text, and automata over tokens from automata over bytes.

An automaton reads each byte as a symbol, which says also whether the byte belongs to a word:
symbol = byte + 256 · (IN_WORD, BETWEEN or INCOMPLETE). Automata have fewer letters than there are
symbols: a letter is a set of symbols that they do not distinguish.

Shape letters: V vocabulary, S states of an automaton over bytes, A its letters.
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
from bighmm.infer.rules.automaton import Automaton, Bools, Ints, number_pairs, number_rows
from bighmm.infer.rules.work import spend

BYTES = 256
SPACE = ord(" ")
ROWS_TIMES_TOKENS = 2**23  # states times tokens that are read at once
# A byte belongs to a word character, to another character, or to an incomplete character, of which
# other tokens hold the other bytes.
IN_WORD, BETWEEN, INCOMPLETE = range(3)
MARK = 3 * BYTES  # the symbol of a token that adds no text
SYMBOLS = MARK + 1

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")  # how tokenizers with byte fallback show a byte
_NOT_WORD_CHARACTERS = (
    (0x0E00, 0x109F),  # Thai, Lao, Tibetan, Burmese
    (0x1780, 0x17FF),  # Khmer
    (0x3040, 0x30FF),  # kana
    (0x3400, 0x9FFF),  # Chinese characters
    (0xF900, 0xFAFF),
    (0x20000, 0x3FFFF),
    (0xFE00, 0xFE0F),  # variation selectors, mostly of emoji
)


@dataclass(frozen=True, eq=False)
class TokenSymbols:
    """The bytes of each token, and its symbols.

    Tokens are sorted by their number of symbols, the longest first: `symbols[i, j]` is symbol i of
    token `order[j]`, which has one if j < counts[i].
    """

    contents: list[bytes | None]
    order: Ints  # (V,)
    symbols: NDArray[np.int16]  # (longest, V)
    counts: Ints  # (longest,)


_CACHE: WeakKeyDictionary[Tokenizer, TokenSymbols] = WeakKeyDictionary()


def symbols_of(tokenizer: Tokenizer) -> TokenSymbols:
    """The bytes and symbols of all tokens, cached; raises ValueError as `token_bytes` does."""
    if tokenizer not in _CACHE:
        contents = token_bytes(tokenizer)
        single = (i for i, content in enumerate(contents) if content and len(content) == 1)
        # Decoders replace the byte of such a token, unless it and its neighbours are a character.
        incomplete = {i for i in single if _BYTE.fullmatch(tokenizer.token(i))}
        _CACHE[tokenizer] = _in_symbols(contents, incomplete)
    return _CACHE[tokenizer]


def subword_bytes(tokenizer: Tokenizer) -> list[bytes | None] | None:
    """The bytes of each token of a subword vocabulary, as `token_bytes`.

    None for a vocabulary of words, and for a tokenizer whose spelling is unknown.
    """
    if tokenizer.kind == "words":
        return None
    try:
        return symbols_of(tokenizer).contents
    except ValueError:
        return None


def token_bytes(tokenizer: Tokenizer) -> list[bytes | None]:
    """The bytes that each token adds to the text; None for marks, which add no text.

    Words have no spaces here; `spacing` adds those between words. Raises ValueError for a subword
    tokenizer with an unknown kind of decoder.
    """
    marks = {tokenizer.end, tokenizer.unknown}
    if isinstance(tokenizer, Subwords):
        marks |= tokenizer.ids_without_text
    spell = _spell(tokenizer)
    return [None if i in marks else spell(tokenizer.token(i)) for i in range(tokenizer.size)]


@cache
def in_word(character: str) -> bool:
    """Whether a character is a word character: a letter, a combining mark, a digit or `_`.

    Characters of scripts without spaces between words are not.
    """
    code = ord(character)
    if any(first <= code <= last for first, last in _NOT_WORD_CHARACTERS):
        return False
    return character == "_" or unicodedata.category(character)[0] in "LMN"


def over_tokens(
    table: Ints, accepting: Bools, letter_of: Ints, tokens: TokenSymbols, at_end: Ints | None = None
) -> Automaton:
    """The automaton over tokens of an automaton that reads their symbols.

    table: (S, A) the transitions of the latter.
    accepting: (S,) its accepting states.
    letter_of: (SYMBOLS,) the letter of each symbol.
    at_end: (S,) transitions at the end of each token; by default the state stays the same.
    """
    width = table.shape[1]
    spend(entries=table.size, in_python=len(table))
    at_end = np.arange(len(table)) if at_end is None else at_end
    between = np.unique(np.r_[0, at_end])  # the states in which a token can begin
    spend(len(between) * int(tokens.counts.sum()) // 2)
    flat, letters = table.astype(np.int32).ravel() * width, letter_of.astype(np.int32)
    number = np.zeros(len(table), dtype=np.int32)
    number[between] = np.arange(len(between))
    after = number[at_end]
    sorted_class_of = np.zeros(len(tokens.order), dtype=np.int64)
    parts = []  # rows of the result with their different columns only, and the column of each token
    at_once = max(1, ROWS_TIMES_TOKENS // len(tokens.order))
    for rows in np.split(between, range(at_once, len(between), at_once)):
        # The state after each token from each of these states, as the offset of its row in `flat`.
        reached = np.repeat((rows * width).astype(np.int32)[:, None], len(tokens.order), 1)
        for symbols, count in zip(tokens.symbols, tokens.counts, strict=True):
            reached[:, :count] = flat[reached[:, :count] + letters[symbols[:count]]]
        by_token = after[reached // width]
        group, places = number_rows(np.ascontiguousarray(by_token.T))
        parts.append((by_token[:, places].astype(np.int64), group))
        sorted_class_of, _, _ = number_pairs(sorted_class_of, group)
    representative = np.empty(int(sorted_class_of.max()) + 1, dtype=np.int64)
    representative[sorted_class_of] = np.arange(len(sorted_class_of))
    class_of = np.empty_like(sorted_class_of)
    class_of[tokens.order] = sorted_class_of
    spend(entries=len(between) * len(representative))
    by_class = np.concatenate([found[:, group[representative]] for found, group in parts])
    return Automaton(by_class, accepting[between], class_of)


def _in_symbols(contents: list[bytes | None], incomplete: set[int]) -> TokenSymbols:
    """The symbols of all tokens; the bytes of tokens in `incomplete` count as incomplete."""
    sizes = np.array([1 if content is None else len(content) for content in contents])
    order = np.argsort(-sizes, kind="stable")
    kinds = [bytes([INCOMPLETE]) if i in incomplete else _kinds(c) for i, c in enumerate(contents)]
    plain = b"".join(b"\0" if content is None else content for content in contents)
    flat = np.frombuffer(plain, np.uint8).astype(np.int16)
    flat += np.frombuffer(b"".join(kinds), np.uint8).astype(np.int16) * BYTES
    counts = np.array([int((sizes > place).sum()) for place in range(sizes.max())])
    symbols = np.zeros((len(counts), len(contents)), dtype=np.int16)
    firsts = (np.cumsum(sizes) - sizes)[order]
    for place, count in enumerate(counts):
        symbols[place, :count] = flat[firsts[:count] + place]
    return TokenSymbols(contents, order, symbols, counts)


def _kinds(content: bytes | None) -> bytes:
    """IN_WORD, BETWEEN or INCOMPLETE for each byte of a token; 3, the kind of MARK, for a mark."""
    if content is None:
        return bytes([MARK // BYTES])
    return b"".join(map(_kinds_of_character, content.decode(errors="surrogateescape")))


@cache
def _kinds_of_character(character: str) -> bytes:
    if "\ud800" <= character <= "\udfff":  # how "surrogateescape" decodes an incomplete character
        return bytes([INCOMPLETE])
    return bytes([IN_WORD if in_word(character) else BETWEEN]) * len(character.encode())


def _spell(tokenizer: Tokenizer) -> Callable[[str], bytes | None]:
    """The function from a token as a string to the bytes that it adds to the text."""
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
    """The bytes of a piece of SentencePiece, None for a mark such as <s>."""
    is_mark = re.fullmatch(r"<[^<>]+>", piece) and not _BYTE.fullmatch(piece)
    return None if is_mark else _byte_or_characters(piece)


def _byte_or_characters(piece: str) -> bytes:
    """The byte of a piece such as <0xC3>, or the characters of any other piece."""
    match = _BYTE.fullmatch(piece)
    return bytes([int(match[1], 16)]) if match else _characters(piece)


def _characters(piece: str) -> bytes:
    """The characters of a piece, in which ▁ stands for a space."""
    return piece.replace("▁", " ").encode()


def _byte_alphabet() -> dict[str, int]:
    """The byte of each character that byte-level tokenizers use for bytes.

    Printable bytes are written as themselves, the others as U+0100 and the following characters.
    """
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    shifted = {chr(256 + place): byte for place, byte in enumerate(others)}
    return {chr(byte): byte for byte in plain} | shifted
