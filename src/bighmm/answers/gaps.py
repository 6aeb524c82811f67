"""Answers about the gaps of a text."""

from __future__ import annotations

import math
from typing import Literal

from bighmm.answers.objects import VERSION, Filling, Fillings
from bighmm.answers.plain import finite
from bighmm.data.tokenizers import unknown_words
from bighmm.lm import gaps
from bighmm.lm.gapped_text import MARK
from bighmm.lm.protocol import LM
from bighmm.lm.rules.asked import NO_RULE, AskedRule

Kind = Literal["samples", "best", "probs"]


def fill(
    lm: LM,
    text: str,
    kind: Kind = "samples",
    n: int = 5,
    open_end: bool = False,
    rule: AskedRule = NO_RULE,
    no_unk: bool = False,
    seed: int | None = None,
) -> Fillings:
    """What stands in the gaps of a text: ___ is one word, ___3 three, ___1-4 one to four.

    kind: texts drawn with their exact probabilities, the likeliest texts, or the likeliest words
        at every place of the gaps.
    n: how many texts, or for probs words.
    open_end: the text may go on after its last word.
    rule: what the filled text satisfies, from its first word to its last.
    no_unk: no gap holds an unknown word.
    seed: the same seed gives the same texts.
    """
    made = rule.of(lm.tokenizer)
    answer = Fillings(
        version=VERSION,
        text=text,
        unknown=unknown_words(lm.tokenizer, MARK.sub(" ", text)),
        kind=kind,
    )
    if kind == "samples":
        drawn = gaps.sample_fillings(
            lm, text, n, open_end=open_end, seed=seed, rule=made, no_unk=no_unk
        )
        answer["fillings"] = [{"text": one.text, "words": one.words} for one in drawn]
    elif kind == "best":
        found = gaps.best_fillings(lm, text, n, open_end=open_end, rule=made, no_unk=no_unk)
        answer["fillings"] = [_likely(one, open_end) for one in found.fillings]
        answer["exact"] = found.exact
    elif kind == "probs":
        words = gaps.gap_words(lm, text, n, open_end=open_end, rule=made, no_unk=no_unk)
        if words.lengths is not None:
            answer["lengths"] = [
                {"lengths": one.lengths, "prob": one.prob} for one in words.lengths
            ]
        answer["gaps"] = [
            {
                "gap": place.gap,
                "word": place.word,
                "words": [
                    {"word": one.word, "prob": one.prob, "log_prob_filling": one.log_prob_filling}
                    for one in place.words
                ],
            }
            for place in words.gaps
        ]
    else:
        raise ValueError(f"the kind of a filling is samples, best or probs, not {kind!r}")
    return finite(answer)


def _likely(found: gaps.LikelyFilling, open_end: bool) -> Filling:
    result = Filling(
        text=found.text,
        words=found.words,
        prob=found.prob,
        log_prob_filling=math.log(found.prob) if found.prob > 0 else -math.inf,
    )
    if open_end:
        result["log_prob_begins"] = found.log_prob
    else:
        result["log_prob"] = found.log_prob
    return result
