"""Rules about the text that tokens spell: regular expressions over characters, and JSON schemas.

outlines-core turns an expression into an automaton over bytes: its index of a vocabulary of the 256
bytes. Every token is then run through it from every state, so that it does not matter which tokens
a text is written with. The text is what the tokenizer decodes tokens to; for a word vocabulary, the
words with spaces where it puts them (`spacing.py`).
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from bighmm.data.tokenizers import Tokenizer, Words
from bighmm.infer.rules.automaton import Automaton, Bools, Ints
from bighmm.infer.rules.rules import Rule
from bighmm.lm.rules.spacing import with_spaces
from bighmm.lm.rules.spelling import BYTES, SPACE, Spelled, over_tokens, spelled


def text_regex(pattern: str, tokenizer: Tokenizer) -> Rule:
    """The whole text matches a regular expression in the syntax of Rust's regex, without anchors.

    Raises ValueError if the expression cannot be read, outlines-core is not installed, or it is
    not known how the tokenizer's tokens are spelled.
    """
    table, accepting = _byte_automaton(pattern)
    found = spelled(tokenizer)
    if _drops_first_space(tokenizer, found.contents):
        table, accepting = _without_first_space(table, accepting)

    def build(size: int) -> Automaton:
        over = _bytes_over_tokens(table, accepting, found)
        if isinstance(tokenizer, Words):
            return with_spaces(over, table[:, SPACE], tokenizer)
        return over

    return Rule(build, f"text {pattern!r}", size=tokenizer.size)


def json_schema(schema: str | dict[str, Any], tokenizer: Tokenizer) -> Rule:
    """The whole text is JSON of this schema, as far as outlines-core knows schemas."""
    given = schema if isinstance(schema, str) else json.dumps(schema)
    try:
        pattern = _outlines().json_schema.build_regex_from_schema(given)
    except Exception as error:
        raise ValueError(f"the JSON schema {given} cannot be used: {_line(error)}") from None
    return text_regex(pattern, tokenizer).called(f"JSON schema {given}")


def _drops_first_space(tokenizer: Tokenizer, contents: list[bytes | None]) -> bool:
    """Whether the tokenizer drops a space at the beginning of a text."""
    for token, content in enumerate(contents):
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

    A state accepts if a byte 0 after it ends a match of the expression followed by byte 0. This is
    because the indices of outlines-core 0.2.14 have no transitions from an accepting state to
    others, so that "(ab)*" alone would match only "" and "ab".
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
    table = np.full((dead + 1, BYTES + 1), dead)  # the last column is for the index's end mark
    for state, row in moves.items():
        for byte, reached in row.items():
            table[number[state], byte] = number.get(reached, dead)
    ends = np.array([*(state in final for state in states), False])
    return table[:, :BYTES], ends[table[:, 0]]


def _without_first_space(table: Ints, accepting: Bools) -> tuple[Ints, Bools]:
    """The same automaton with a new first state that ignores one space."""
    first = table[0].copy()
    first[SPACE] = 0
    return np.concatenate([first[None], table]) + 1, np.concatenate([accepting[:1], accepting])


def _bytes_over_tokens(table: Ints, accepting: Bools, spelled: Spelled) -> Automaton:
    """The automaton over tokens of one over bytes; marks lead to its last state, which is dead."""
    dead = len(table) - 1
    with_marks = np.column_stack([table, np.full(len(table), dead)])
    letter_of = np.r_[np.tile(np.arange(BYTES), 3), BYTES]
    return over_tokens(with_marks, accepting, letter_of, spelled)


def _line(error: Exception) -> str:
    return str(error).splitlines()[0]
