"""Rules about sequences of token ids, and the finite automata they are compiled to.

`rules` has the rules, `automaton` the automata, `phrases` automata of phrases, `pattern` regular
expressions over tokens.
"""

from bighmm.infer.rules.automaton import Automaton
from bighmm.infer.rules.rules import (
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

__all__ = [
    "Automaton",
    "Rule",
    "automaton",
    "contains",
    "ends_with",
    "excludes",
    "in_order",
    "length",
    "regex",
    "starts_with",
    "until",
]
