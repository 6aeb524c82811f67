"""Rules about texts, as finite automata over tokens. Also imported as `bighmm.constraints`.

    from bighmm import constraints as c

    rule = c.contains([[5, 7], [9]]) & c.length(8, 12) & ~c.contains([[3]])

`bighmm.infer.rules` has the rules about token ids, and the automata that they are compiled to. Here
are rules that need a tokenizer: `words.py` makes them from phrases, with `whole_words.py` where
tokens are parts of words; `text.py` from regular expressions over the text that tokens spell (with
the extra `bighmm[outlines]`). `spelling.py` knows what tokens spell, `spacing.py` which spaces are
between words, `seams.py` where words of two texts would run together.
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
