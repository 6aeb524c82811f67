"""Rules about the text that tokens spell: regular expressions over characters, and JSON schemas.

An expression becomes an automaton over bytes (`expression`), and a schema an expression (`schema`).
An automaton over tokens follows from running every token through it from every state. So a text
satisfies a rule or not whatever tokens it is divided into. The text is what the tokenizer decodes
tokens to; for a vocabulary of words it has the spaces of the tokenizer (`spacing`).
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from bighmm.base.json_files import parse_json
from bighmm.base.settings import shown
from bighmm.data.tokenizers import Tokenizer, Words
from bighmm.infer.rules.automaton import Automaton, Bools, Ints
from bighmm.infer.rules.rules import Rule
from bighmm.infer.rules.work import TooMuchWork, limited
from bighmm.lm.rules.asked import MOST_SCHEMA
from bighmm.lm.rules.expression import byte_automaton
from bighmm.lm.rules.schema import schema_pattern
from bighmm.lm.rules.spacing import with_spaces
from bighmm.lm.rules.spelling import BYTES, SPACE, TokenSymbols, over_tokens, symbols_of


def text_regex(pattern: str, tokenizer: Tokenizer) -> Rule:
    """The rule that the whole text matches a regular expression.

    pattern: in the syntax of Python's `re`, without look-around, references to groups and flags.

    Raises ValueError if the expression is malformed or has other parts, its automaton would be too
    large, or the spelling of the tokenizer's tokens is unknown.
    """
    name = f"text {pattern!r}"
    with limited(name):
        table, accepting = _byte_table(pattern)
    tokens = symbols_of(tokenizer)
    if _drops_first_space(tokenizer, tokens.contents):
        table, accepting = _without_first_space(table, accepting)

    def build(size: int) -> Automaton:
        automaton = _bytes_over_tokens(table, accepting, tokens)
        if isinstance(tokenizer, Words):
            return with_spaces(automaton, table[:, SPACE], tokenizer)
        return automaton

    return Rule(build, name, size=tokenizer.size)


def json_schema(schema: str | dict[str, Any], tokenizer: Tokenizer) -> Rule:
    """The rule that the whole text is JSON and valid under a schema; `schema` says in which form.

    Raises ValueError as `text_regex` does, and if a keyword of the schema cannot be kept.
    """
    text = schema if isinstance(schema, str) else _as_json(schema)
    name = _shortened(text)
    wrong = f"the JSON schema {name} cannot be used"
    if len(text) > MOST_SCHEMA:
        raise ValueError(f"{wrong}: it has more than {MOST_SCHEMA:,} characters")
    parsed = parse_json(text, wrong)
    with limited(f"JSON schema {name}"):
        try:
            pattern = schema_pattern(parsed)
        except TooMuchWork:
            raise
        except (ValueError, TypeError, RecursionError) as error:
            reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
            raise ValueError(f"{wrong}: {reason}") from None
        return text_regex(pattern, tokenizer).called(f"JSON schema {name}")


def _as_json(schema: dict[str, Any]) -> str:
    """The JSON text of a schema that is a Python object; ValueError if it has none."""
    try:
        return json.dumps(schema, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise ValueError(f"the JSON schema {shown(schema)} cannot be used: {reason}") from None


def _shortened(text: str) -> str:
    """A text in a message, on one line and cut if it is long."""
    text = " ".join(text.split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def _drops_first_space(tokenizer: Tokenizer, contents: list[bytes | None]) -> bool:
    """Whether the tokenizer drops a space at the beginning of a text."""
    for token, content in enumerate(contents):
        if content is not None and re.fullmatch(rb" [!-~]+", content):
            return not tokenizer.decode([token]).startswith(" ")
    return False


def _byte_table(pattern: str) -> tuple[Ints, Bools]:
    """The automaton of an expression over bytes: its table (S, 256), and accepting states (S,).

    The initial state is the first, a dead state is the last.
    """
    found = byte_automaton(pattern)
    table = found.transitions[:, found.class_of]
    dead = np.full((1, BYTES), len(table))
    return np.concatenate([table, dead]), np.append(found.accepting, False)


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
