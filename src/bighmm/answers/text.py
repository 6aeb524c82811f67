"""Answers that every language model gives: scores, next words, samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bighmm.answers.objects import VERSION, NextWords, Samples, ScoredText, Scores
from bighmm.answers.plain import finite
from bighmm.data.tokenizers import unknown_words
from bighmm.lm import questions
from bighmm.lm.protocol import LM
from bighmm.lm.rules.asked import NO_RULE, AskedRule


def score(lm: LM, texts: Sequence[str], words: bool = False) -> Scores:
    """The probability of each text, which is one line; with `words`, of every word of it."""
    _check_texts(texts)
    found = [scored_text(one) for one in questions.scores(lm, texts, words)]
    return finite(Scores(version=VERSION, lines=found))


def scored_text(found: questions.Score) -> ScoredText:
    """The object of one scored text."""
    result = ScoredText(
        text=found.text,
        log_prob=found.log_prob,
        tokens=found.tokens,
        perplexity=found.perplexity if math.isfinite(found.log_prob) else None,
        unknown=found.unknown,
    )
    if found.words is not None:
        result["words"] = [
            {
                "word": word.word,
                "log_prob_next": word.log_prob_next,
                "surprisal_bits": -word.log_prob_next / math.log(2),
                "is_unknown": word.is_unknown,
            }
            for word in found.words
        ]
    return finite(result)


def next_words(
    lm: LM,
    prefix: str = "",
    n: int = 10,
    rule: AskedRule = NO_RULE,
    length: int | None = None,
    no_unk: bool = False,
) -> NextWords:
    """The n likeliest next words after a prefix, under a rule if one is given.

    length: with a rule, tokens after the prefix at most, the end mark not counted (100).
    no_unk: leave out the mark of unknown words, and give the probabilities without it.
    """
    found = questions.next_words(lm, prefix, n, rule.of(lm.tokenizer), length, no_unk)
    return finite(
        NextWords(
            version=VERSION,
            prefix=prefix,
            unknown=unknown_words(lm.tokenizer, prefix),
            next=[
                {"word": one.word, "prob": one.prob, "log_prob_next": one.log_prob_next}
                for one in found
            ],
        )
    )


def sample(
    lm: LM,
    n: int = 3,
    prefix: str = "",
    rule: AskedRule = NO_RULE,
    length: int | None = None,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float = 1.0,
    no_unk: bool = False,
    seed: int | None = None,
) -> Samples:
    """n texts that begin with a prefix, drawn from the model, under a rule if one is given.

    length: tokens after the prefix at most, the end mark not counted (100).
    temperature: below 1 sharper, above 1 flatter, 0 always the likeliest word.
    top_k, top_p: draw among the likeliest words only, so many or of this probability in all.
    no_unk: draw no unknown words.
    seed: the same seed gives the same texts.
    """
    drawn = questions.sample(
        lm,
        n,
        prefix,
        length,
        rule.of(lm.tokenizer),
        temperature,
        seed,
        top_k=top_k,
        top_p=top_p,
        no_unk=no_unk,
    )
    return Samples(
        version=VERSION,
        prefix=prefix,
        unknown=unknown_words(lm.tokenizer, prefix),
        texts=[{"text": one.text, "tokens": len(one.ids), "ended": one.ended} for one in drawn],
    )


def _check_texts(texts: Sequence[str]) -> None:
    if isinstance(texts, str) or not all(isinstance(text, str) for text in texts):
        raise ValueError("texts are a list of strings, one for each line")
    if not texts:
        raise ValueError("there is no text; give at least one")
    for text in texts:
        if "\n" in text:
            raise ValueError(f"a text is one line, but {text[:40]!r} has a line break")
