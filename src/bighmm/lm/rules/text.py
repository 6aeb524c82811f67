"""Rules about the text that tokens spell: regular expressions over characters, and JSON schemas.

outlines-core turns an expression into an automaton over bytes: its index of a vocabulary of the 256
bytes. An automaton over tokens follows from running every token through it from every state. So a
text satisfies a rule or not whatever tokens it is divided into. The text is what the tokenizer
decodes tokens to; for a vocabulary of words it has the spaces of the tokenizer (`spacing`).
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
from bighmm.lm.rules.spelling import BYTES, SPACE, TokenSymbols, over_tokens, symbols_of


def text_regex(pattern: str, tokenizer: Tokenizer) -> Rule:
    """The rule that the whole text matches a regular expression.

    pattern: in the syntax of Rust's regex, without anchors.

    Raises ValueError if the expression is malformed, outlines-core is not installed, or the
    spelling of the tokenizer's tokens is unknown.
    """
    table, accepting = _byte_automaton(pattern)
    tokens = symbols_of(tokenizer)
    if _drops_first_space(tokenizer, tokens.contents):
        table, accepting = _without_first_space(table, accepting)

    def build(size: int) -> Automaton:
        automaton = _bytes_over_tokens(table, accepting, tokens)
        if isinstance(tokenizer, Words):
            return with_spaces(automaton, table[:, SPACE], tokenizer)
        return automaton

    return Rule(build, f"text {pattern!r}", size=tokenizer.size)


def json_schema(schema: str | dict[str, Any], tokenizer: Tokenizer) -> Rule:
    """The rule that the whole text is JSON of a schema, with what outlines-core supports of it.

    Raises ValueError as `text_regex` does.
    """
    text = schema if isinstance(schema, str) else json.dumps(schema)
    try:
        pattern = _outlines().json_schema.build_regex_from_schema(text)
    except Exception as error:
        raise ValueError(f"the JSON schema {text} cannot be used: {_first_line(error)}") from None
    return text_regex(pattern, tokenizer).called(f"JSON schema {text}")


def _drops_first_space(tokenizer: Tokenizer, contents: list[bytes | None]) -> bool:
    """Whether the tokenizer drops a space at the beginning of a text."""
    for token, content in enumerate(contents):
        if content is not None and re.fullmatch(rb" [!-~]+", content):
            return not tokenizer.decode([token]).startswith(" ")
    return False


def _outlines() -> Any:
    """The module outlines_core; ValueError if it is not installed."""
    try:
        import outlines_core
    except ImportError:
        raise ValueError(
            "rules about text and JSON schemas need the package outlines-core: install "
            '"bighmm[outlines]"'
        ) from None
    return outlines_core


def _byte_automaton(pattern: str) -> tuple[Ints, Bools]:
    """The automaton of an expression over bytes: its table (S, 256), and accepting states (S,).

    The initial state is the first, a dead state is the last. The index of outlines-core 0.2.14 has
    no transitions from an accepting state to other states, so that "(ab)*" would match only "" and
    "ab". Therefore the index is built for the expression followed by a byte 0, and a state accepts
    if byte 0 leads from it to a final state of the index.
    """
    outlines = _outlines()
    letters = outlines.Vocabulary(BYTES, {bytes([byte]): [byte] for byte in range(BYTES)})
    try:
        index = outlines.Index(rf"(?:{pattern})\x00", letters)
    except (ValueError, RuntimeError) as error:
        reason = _first_line(error)
        raise ValueError(f"the expression {pattern!r} cannot be used: {reason}") from None
    transitions, first = index.get_transitions(), index.get_initial_state()
    final = index.get_final_states()
    states = [first, *(transitions.keys() | final) - {first}]
    number = {state: i for i, state in enumerate(states)}
    dead = len(states)
    table = np.full((dead + 1, BYTES + 1), dead)  # the last column is for the index's end mark
    for state, row in transitions.items():
        for byte, reached in row.items():
            table[number[state], byte] = number.get(reached, dead)
    ends = np.array([*(state in final for state in states), False])
    return table[:, :BYTES], ends[table[:, 0]]


def _without_first_space(table: Ints, accepting: Bools) -> tuple[Ints, Bools]:
    """The automaton with a new initial state that ignores one space."""
    first = table[0].copy()
    first[SPACE] = 0
    return np.concatenate([first[None], table]) + 1, np.concatenate([accepting[:1], accepting])


def _bytes_over_tokens(table: Ints, accepting: Bools, tokens: TokenSymbols) -> Automaton:
    """The automaton over tokens of an automaton over bytes whose last state is dead.

    Marks, which are not text, lead to the dead state.
    """
    dead = len(table) - 1
    with_marks = np.column_stack([table, np.full(len(table), dead)])
    letter_of = np.r_[np.tile(np.arange(BYTES), 3), BYTES]
    return over_tokens(with_marks, accepting, letter_of, tokens)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
