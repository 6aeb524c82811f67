"""Language models with their words: every question about text, files, evaluation, baselines.

The names below are imported when they are first used, because torch takes seconds to load.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bighmm.lm.evaluation import Evaluation, evaluate_corpus
    from bighmm.lm.gaps import best_fillings, gap_words, sample_fillings
    from bighmm.lm.hmmlm import HMMLM
    from bighmm.lm.opening import corpus_for, open_hmm, open_model
    from bighmm.lm.protocol import LM, Predictor
    from bighmm.lm.questions import DEFAULT_LENGTH, next_words, sample, score

__all__ = [
    "DEFAULT_LENGTH",
    "HMMLM",
    "LM",
    "Evaluation",
    "Predictor",
    "best_fillings",
    "corpus_for",
    "evaluate_corpus",
    "gap_words",
    "next_words",
    "open_hmm",
    "open_model",
    "sample",
    "sample_fillings",
    "score",
]

_MODULES = {
    "evaluation": ("Evaluation", "evaluate_corpus"),
    "gaps": ("best_fillings", "gap_words", "sample_fillings"),
    "hmmlm": ("HMMLM",),
    "opening": ("corpus_for", "open_hmm", "open_model"),
    "protocol": ("LM", "Predictor"),
    "questions": ("DEFAULT_LENGTH", "next_words", "sample", "score"),
}
_PLACES = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)
