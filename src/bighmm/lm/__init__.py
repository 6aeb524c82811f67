"""Language models with their words: every question about text, files, evaluation, baselines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bighmm.base.lazy import lazy_names

if TYPE_CHECKING:
    from bighmm.lm.evaluation import Evaluation, evaluate_corpus
    from bighmm.lm.gaps import best_fillings, gap_words, sample_fillings
    from bighmm.lm.hmmlm import HMMLM
    from bighmm.lm.opening import corpus_for, open_hmm, open_model
    from bighmm.lm.protocol import LM, Predictor
    from bighmm.lm.questions import DEFAULT_LENGTH, next_words, sample, score

__all__ = [
    *("DEFAULT_LENGTH", "HMMLM", "LM", "Evaluation", "Predictor", "best_fillings", "corpus_for"),
    *("evaluate_corpus", "gap_words", "next_words", "open_hmm", "open_model", "sample"),
    *("sample_fillings", "score"),
]

__getattr__ = lazy_names(
    __name__,
    {
        "bighmm.lm.evaluation": ("Evaluation", "evaluate_corpus"),
        "bighmm.lm.gaps": ("best_fillings", "gap_words", "sample_fillings"),
        "bighmm.lm.hmmlm": ("HMMLM",),
        "bighmm.lm.opening": ("corpus_for", "open_hmm", "open_model"),
        "bighmm.lm.protocol": ("LM", "Predictor"),
        "bighmm.lm.questions": ("DEFAULT_LENGTH", "next_words", "sample", "score"),
    },
)
