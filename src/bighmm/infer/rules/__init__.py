"""Rules about sequences of token ids, and the finite automata they are compiled to."""

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
