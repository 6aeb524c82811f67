"""Rules about texts, as finite automata over tokens. Also imported as `bighmm.constraints`.

    from bighmm import constraints as c

    rule = c.contains([[5, 7], [9]]) & c.length(8, 12) & ~c.contains([[3]])

`bighmm.infer.rules` has the rules about token ids, and the automata that they are compiled to. The
rules here need a tokenizer:

- `words`: rules about words and phrases; `whole_words` for tokens that are parts of words.
- `text`: regular expressions over characters, and JSON schemas (with the extra `bighmm[outlines]`).
- `boundaries`: a text that follows a prefix begins and ends at word boundaries.
- `spelling`: the bytes that each token adds to the text.
- `spacing`: the spaces between the words of a word vocabulary.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bighmm.infer.rules import (
        Automaton,
        Rule,
        automaton,
        contains,
        ends_with,
        excludes,
        in_order,
        length,
        regex,
        starts_with,
        until,
    )
    from bighmm.lm.rules.text import json_schema, text_regex
    from bighmm.lm.rules.words import rule_from_words

__all__ = [
    "Automaton",
    "Rule",
    "automaton",
    "contains",
    "ends_with",
    "excludes",
    "in_order",
    "json_schema",
    "length",
    "regex",
    "rule_from_words",
    "starts_with",
    "text_regex",
    "until",
]

_PLACES = {
    **dict.fromkeys(__all__, "bighmm.infer.rules"),
    "json_schema": "bighmm.lm.rules.text",
    "text_regex": "bighmm.lm.rules.text",
    "rule_from_words": "bighmm.lm.rules.words",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)
