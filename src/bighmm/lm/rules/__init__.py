"""Rules about texts, as finite automata over tokens. Also imported as `bighmm.constraints`.

    from bighmm import constraints as c

    rule = c.contains([[5, 7], [9]]) & c.length(8, 12) & ~c.contains([[3]])

`bighmm.infer.rules` has the rules about token ids, and the automata that they are compiled to. The
rules here need a tokenizer:

- `asked`: a rule as plain values, which flags and JSON give.
- `words`: rules about words and phrases; `whole_words` for tokens that are parts of words.
- `text`: regular expressions over characters (`expression`), and JSON schemas (`schema`).
- `boundaries`: a text that follows a prefix begins and ends at word boundaries.
- `spelling`: the bytes that each token adds to the text.
- `spacing`: the spaces between the words of a word vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bighmm.base.lazy import lazy_names

if TYPE_CHECKING:
    from bighmm.infer.rules import *  # noqa: F403
    from bighmm.lm.rules.asked import AskedRule
    from bighmm.lm.rules.text import json_schema, text_regex
    from bighmm.lm.rules.words import rule_from_words

_OVER_TOKEN_IDS = (
    *("Automaton", "Rule", "automaton", "contains", "ends_with", "excludes", "in_order", "length"),
    *("regex", "starts_with", "until"),
)

__all__ = ["AskedRule", *_OVER_TOKEN_IDS, "json_schema", "rule_from_words", "text_regex"]

__getattr__ = lazy_names(
    __name__,
    {
        "bighmm.infer.rules": _OVER_TOKEN_IDS,
        "bighmm.lm.rules.asked": ("AskedRule",),
        "bighmm.lm.rules.text": ("json_schema", "text_regex"),
        "bighmm.lm.rules.words": ("rule_from_words",),
    },
)
