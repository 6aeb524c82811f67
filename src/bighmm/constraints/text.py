"""Rules about the text that tokens spell: regular expressions over characters, and JSON schemas.

outlines-core turns an expression into an automaton over bytes: its index of a vocabulary of the 256
bytes. Every token of ours is then run through it from every state. All the ways to write the same
text as tokens satisfy the rule alike. For a word vocabulary the text is the words with one space
between them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np

from bighmm.constraints.automaton import Automaton, Bools, Ints, number_rows
from bighmm.constraints.rules import Rule
from bighmm.text import Subwords, Tokenizer

BYTES = 256
SPACE = ord(" ")
_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def text_regex(pattern: str, tokenizer: Tokenizer) -> Rule:
    """The whole text matches a regular expression in the syntax of Rust's regex, without anchors.

    Raises ValueError if the expression cannot be read, outlines-core is not installed, or it is
    not known how the tokenizer's tokens are spelled.
    """
    table, accepting = _byte_automaton(pattern)
    spelled = spelling(tokenizer)
    if _drops_first_space(tokenizer, spelled):
        table, accepting = _without_first_space(table, accepting)
    return Rule(
        lambda _: _over_tokens(table, accepting, spelled), f"text {pattern!r}", size=tokenizer.size
    )


def json_schema(schema: str | dict[str, Any], tokenizer: Tokenizer) -> Rule:
    """The whole text is JSON of this schema, as far as outlines-core knows schemas."""
    given = schema if isinstance(schema, str) else json.dumps(schema)
    try:
        pattern = _outlines().json_schema.build_regex_from_schema(given)
    except Exception as error:
        raise ValueError(f"the JSON schema {given} cannot be used: {_line(error)}") from None
    return text_regex(pattern, tokenizer).called(f"JSON schema {given}")


def spelling(tokenizer: Tokenizer) -> list[bytes | None]:
    """What each token adds to the text; None for marks, which are not text.

    Raises ValueError for a tokenizer whose tokens are not spelled in a way that is known.
    """
    marks = {tokenizer.end, tokenizer.unknown}
    if isinstance(tokenizer, Subwords):
        marks |= tokenizer.marks
    spell = _spell(tokenizer)
    return [None if i in marks else spell(tokenizer.token(i)) for i in range(tokenizer.size)]


def _spell(tokenizer: Tokenizer) -> Callable[[str], bytes | None]:
    if tokenizer.kind == "words":
        return lambda word: f" {word}".encode()
    if not isinstance(tokenizer, Subwords):
        return _sentence_piece
    steps = tokenizer.decoding
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


def _drops_first_space(tokenizer: Tokenizer, spelled: list[bytes | None]) -> bool:
    """Whether a space at the very beginning is left out of the text."""
    for token, content in enumerate(spelled):
        if content is not None and re.fullmatch(rb" [!-~]+", content):
            return not tokenizer.decode([token]).startswith(" ")
    return False


def _outlines() -> Any:
    try:
        import outlines_core
    except ImportError:
        raise ValueError(
            "rules about text and JSON schemas need the package outlines-core: install "
            '"bighmm[outlines]"'
        ) from None
    return outlines_core


def _byte_automaton(pattern: str) -> tuple[Ints, Bools]:
    """States × 256 bytes, and which states accept. The last state is dead.

    A state accepts if a byte 0 after it would end a match of the expression followed by byte 0.
    The indices of outlines-core 0.2.14 lack the ways from a state that accepts to one that does
    not, so that "(ab)*" would be no more than "" and "ab"; with byte 0 at the end there are none.
    """
    outlines = _outlines()
    letters = outlines.Vocabulary(BYTES, {bytes([byte]): [byte] for byte in range(BYTES)})
    try:
        index = outlines.Index(rf"(?:{pattern})\x00", letters)
    except (ValueError, RuntimeError) as error:
        raise ValueError(f"the expression {pattern!r} cannot be used: {_line(error)}") from None
    moves, first = index.get_transitions(), index.get_initial_state()
    final = index.get_final_states()
    states = [first, *(moves.keys() | final) - {first}]
    number = {state: i for i, state in enumerate(states)}
    dead = len(states)
    table = np.full((dead + 1, BYTES + 1), dead)  # the last column is of its end mark
    for state, row in moves.items():
        for byte, reached in row.items():
            table[number[state], byte] = number.get(reached, dead)
    ends = np.array([*(state in final for state in states), False])
    return table[:, :BYTES], ends[table[:, 0]]


def _without_first_space(table: Ints, accepting: Bools) -> tuple[Ints, Bools]:
    """With another first state, for which one space at the beginning does not count."""
    first = table[0].copy()
    first[SPACE] = 0
    return np.concatenate([first[None], table]) + 1, np.concatenate([accepting[:1], accepting])


def _over_tokens(table: Ints, accepting: Bools, spelled: list[bytes | None]) -> Automaton:
    """The automaton over tokens of one over bytes whose last state is dead."""
    sizes = np.array([len(content or b"") for content in spelled])
    order = np.argsort(-sizes)  # the longest first: those that have a next byte stand together
    padded = np.zeros((len(spelled), sizes.max()), dtype=np.int64)
    for row, token in enumerate(order):
        padded[row, : sizes[token]] = list(spelled[token] or b"")
    reached = np.repeat(np.arange(len(table))[:, None], len(spelled), axis=1)
    for place in range(sizes.max()):
        left = int((sizes > place).sum())
        reached[:, :left] = table[reached[:, :left], padded[:left, place]]
    by_token = np.empty_like(reached)
    by_token[:, order] = reached
    by_token[:, [content is None for content in spelled]] = len(table) - 1
    class_of, places = number_rows(by_token.T)
    return Automaton(by_token[:, places], accepting, class_of)


def _line(error: Exception) -> str:
    return str(error).splitlines()[0]
