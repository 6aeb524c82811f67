"""Every question to a model as one function that returns the object that is its answer in JSON.

The commands print it with --json, a server sends it, and docs/reference/json.md describes it: the
`objects` say what each key means, and `schemas` makes JSON schemas and tables of them.

A function takes an open model and plain values, and returns a dictionary of plain finite values
with "version": 1. Where a number would be infinite, because a probability is zero, it is None.
A user's mistake is a ValueError with one sentence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bighmm.base.lazy import lazy_names

if TYPE_CHECKING:
    from bighmm.answers.evaluation import evaluate
    from bighmm.answers.gaps import fill
    from bighmm.answers.inspection import posterior, states, tag
    from bighmm.answers.questions import QUESTIONS, Question
    from bighmm.answers.rules import rule
    from bighmm.answers.text import next_words, sample, score
    from bighmm.lm.rules.asked import AskedRule

__all__ = [
    *("QUESTIONS", "AskedRule", "Question", "evaluate", "fill", "next_words", "posterior", "rule"),
    *("sample", "score", "states", "tag"),
]

__getattr__ = lazy_names(
    __name__,
    {
        "bighmm.answers.evaluation": ("evaluate",),
        "bighmm.answers.gaps": ("fill",),
        "bighmm.answers.questions": ("QUESTIONS", "AskedRule", "Question"),
        "bighmm.answers.rules": ("rule",),
        "bighmm.answers.inspection": ("posterior", "states", "tag"),
        "bighmm.answers.text": ("next_words", "sample", "score"),
        "bighmm.lm.rules.asked": ("AskedRule",),
    },
)
