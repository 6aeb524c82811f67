"""Rules about token sequences, as finite automata.

    from bighmm import constraints as c

    rule = c.contains([[5, 7], [9]]) & c.length(8, 12) & ~c.contains([[3]])

`rules.py` has the rules and `automaton.py` what they are compiled to; `pattern.py` reads regular
expressions over tokens, `text.py` those over the text that tokens spell (with the extra
`bighmm[outlines]`), and `words.py` makes rules from words and a tokenizer, with `whole_words.py`
where tokens are parts of words. `spelling.py` knows what tokens spell, `spacing.py` which spaces
stand between words.
"""

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
