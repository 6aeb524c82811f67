"""The questions by name: the function that answers each, and the object that is its answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bighmm.answers import gaps, inspection, objects, rules, text


@dataclass(frozen=True)
class Question:
    """A question to a model."""

    ask: Callable[..., Any]  # of an open model and plain values
    answer: type  # one of `objects`
    only_hmm: bool  # whether only a hidden Markov model answers it


QUESTIONS = {
    "score": Question(text.score, objects.Scores, False),
    "next": Question(text.next_words, objects.NextWords, False),
    "sample": Question(text.sample, objects.Samples, False),
    "fill": Question(gaps.fill, objects.Fillings, True),
    "rule": Question(rules.rule, objects.RuleAnswer, True),
    "tag": Question(inspection.tag, objects.Tags, True),
    "posterior": Question(inspection.posterior, objects.Posteriors, True),
    "states": Question(inspection.states, objects.States, True),
}
