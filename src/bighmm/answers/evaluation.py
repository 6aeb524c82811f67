"""The answer to how well a model predicts a text."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, cast

from bighmm.answers.objects import VERSION, Perplexity
from bighmm.answers.plain import finite
from bighmm.lm.evaluation import evaluate_corpus
from bighmm.lm.options import Convention
from bighmm.lm.protocol import LM

if TYPE_CHECKING:
    from bighmm.data.corpus import Corpus
    from bighmm.data.whole import WholeText


def evaluate(
    lm: LM,
    corpus: Corpus | WholeText,
    split: str = "test",
    convention: Convention | None = None,
    check_normalised: bool = False,
    contexts: int = 32,
) -> Perplexity:
    """The perplexity of a split of a corpus, or of a whole text, with its conventions.

    The arguments are those of `lm.evaluation.evaluate_corpus`.
    """
    found = evaluate_corpus(
        lm,
        corpus,
        split,
        convention=convention,
        check_normalised=check_normalised,
        contexts=contexts,
    )
    values = dataclasses.asdict(found)
    if not check_normalised:
        del values["largest_deviation_from_one"]
    return cast(Perplexity, finite({"version": VERSION, **values}))
