"""Questions about the gaps of a text: samples, the likeliest fillings, the likeliest words.

`gapped_text` says how gaps are written. All answers are exact, given everything that is known on
both sides of the gaps. Where lengths are open,

    p(lengths | known words) ∝ Σ p(text) over all fillings of these lengths.

`sample_fillings`, `best_fillings` and `gap_words` are about text; `draw`, `best`, `word_probs` and
`length_probs` are the same for an `HMM` and token ids.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from bighmm.base.randomness import generator_for
from bighmm.base.settings import check_at_least_one
from bighmm.data.tokenizers import Tokenizer
from bighmm.hmm import HMM
from bighmm.infer.fill import FillProbs
from bighmm.infer.rules import Rule
from bighmm.lm.gapped_text import Filled, GappedText, Lengths
from bighmm.lm.protocol import LM
from bighmm.lm.questions import (
    check_texts,
    hmm_of,
    likeliest_words,
    unknown_ids,
)
from bighmm.lm.ruled_gaps import RuledGaps

IMPOSSIBLE = "the known words have probability zero, so nothing fits the gaps"


@dataclass(frozen=True)
class Filling:
    """A text whose gaps are filled."""

    text: str
    words: list[list[str]]  # the tokens in each gap


@dataclass(frozen=True)
class LikelyFilling(Filling):
    """A filling with its probability."""

    log_prob: float  # log p(whole text)
    prob: float  # p(filling | all that is known)


@dataclass(frozen=True)
class BestFillings:
    """The likeliest fillings, best first."""

    fillings: list[LikelyFilling]
    exact: bool  # whether no likelier filling can have been missed
    open_lengths: bool  # whether a gap has several lengths: a text may then fit in several ways


@dataclass(frozen=True)
class LengthProb:
    """p(lengths of all gaps | known words)."""

    lengths: list[int]
    prob: float


@dataclass(frozen=True)
class GapWord:
    """A token and its probability at a position of a gap."""

    word: str
    prob: float  # p(word there | all that is known)
    log_prob_filling: float  # its logarithm


@dataclass(frozen=True)
class GapWords:
    """The likeliest words at one position of a gap, both counted from 1."""

    gap: int
    word: int
    words: list[GapWord]


@dataclass(frozen=True)
class GapAnswer:
    """The likeliest words at every position of the gaps."""

    lengths: list[LengthProb] | None  # the likeliest first; None where all lengths are known
    gaps: list[GapWords]  # of the likeliest lengths


def sample_fillings(
    lm: LM,
    text: str,
    n: int = 1,
    *,
    open_end: bool = False,
    ends: bool = False,
    seed: int | None = None,
    generator: torch.Generator | None = None,
    rule: Rule | None = None,
    no_unk: bool = False,
) -> list[Filling]:
    """n exact samples of a text with gaps; where a length is open it is drawn too.

    The text ends after its last word, unless `open_end`. A gap holds no end mark, unless `ends`.
    With a rule the filled text satisfies it, from its first word to its last. With `no_unk` no gap
    holds the mark of unknown words.
    The same seed gives the same fillings; without a seed and a generator they differ every time.
    Raises ValueError with the reason if the text has no gap, if nothing fits one, and if `lm` is
    not an HMM; so do the other questions about gaps.
    """
    if generator is None:
        generator = generator_for(lm.device, seed)
    return draw_fillings(lm, text, n, open_end, ends, generator, rule, no_unk)


def draw_fillings(
    lm: LM,
    text: str,
    n: int,
    open_end: bool,
    ends: bool,
    generator: torch.Generator | None,
    rule: Rule | None,
    no_unk: bool,
) -> list[Filling]:
    """As `sample_fillings`; without a generator the random numbers are torch's global ones."""
    hmm, gapped = _read(lm, text, open_end)
    ruled = _ruled(lm, hmm, gapped, ends, rule, no_unk)
    if ruled is None:
        drawn = draw(hmm, gapped, n, generator, ends)
    else:
        check_at_least_one(n, "n")
        check_texts(n)
        drawn = ruled.draw(n, generator)
    return [_filling(lm, filled) for filled in drawn]


def best_fillings(
    lm: LM,
    text: str,
    n: int = 1,
    *,
    open_end: bool = False,
    ends: bool = False,
    rule: Rule | None = None,
    no_unk: bool = False,
) -> BestFillings:
    """The n likeliest fillings that `HMM.best_fill` finds, with p(filling | known words).

    A text that fits gaps of open lengths in several ways is as many fillings.
    """
    check_at_least_one(n, "n")
    hmm, gapped = _read(lm, text, open_end)
    ruled = _ruled(lm, hmm, gapped, ends, rule, no_unk)
    if ruled is None:
        found = best(hmm, gapped, n, ends)
        if not found.filled:
            raise ValueError(IMPOSSIBLE)
        tokens, sizes = gapped.tokens(gapped.choices)
        known = float(hmm.known_log_prob(tokens, sizes, ends).logsumexp(0))
    else:
        known = float(ruled.log_probs().logsumexp(0))
        found = Best(*ruled.best(n))
    rows = []
    for filled, log_prob in zip(found.filled, found.log_probs, strict=True):
        made = _filling(lm, filled)
        rows.append(LikelyFilling(made.text, made.words, log_prob, math.exp(log_prob - known)))
    return BestFillings(rows, found.exact, len(gapped.choices) > 1)


def gap_words(
    lm: LM,
    text: str,
    n: int = 5,
    *,
    open_end: bool = False,
    ends: bool = False,
    rule: Rule | None = None,
    no_unk: bool = False,
) -> GapAnswer:
    """The n likeliest words at every position of the gaps.

    Where lengths are open: the n likeliest combinations of lengths, and the words given the
    likeliest one.
    """
    check_at_least_one(n, "n")
    hmm, gapped = _read(lm, text, open_end)
    ruled = _ruled(lm, hmm, gapped, ends, rule, no_unk)
    lengths = None
    of_lengths = None if ruled is None else ruled.log_probs().softmax(0).tolist()
    if len(gapped.choices) > 1:
        if of_lengths is None:
            probs = length_probs(hmm, gapped, ends)
        else:
            probs = dict(zip(gapped.choices, of_lengths, strict=True))
        ranked = sorted(probs.items(), key=lambda pair: -pair[1])
        lengths = [LengthProb(list(which), prob) for which, prob in ranked[:n]]
        gapped = gapped.of_lengths(ranked[0][0])
    places = [
        (gap, word) for gap, (size, _) in enumerate(gapped.ranges, 1) for word in range(1, size + 1)
    ]
    if ruled is None:
        found = word_probs(hmm, gapped, ends).words
    else:
        found = ruled.word_probs(gapped.choices[0])
    words = []
    for (gap, place), row in zip(places, found, strict=True):
        likely = likeliest_words(lm.tokenizer, row, n)
        words.append(GapWords(gap, place, [GapWord(word, math.exp(p), p) for word, p in likely]))
    return GapAnswer(lengths, words)


class Best(NamedTuple):
    filled: list[Filled]
    log_probs: list[float]  # log p(text) of each, the highest first
    exact: bool  # whether no likelier filling can have been missed


def draw(
    hmm: HMM, text: GappedText, n: int, generator: torch.Generator | None, ends: bool
) -> list[Filled]:
    """n exact samples: lengths, and tokens of these lengths, given all that is known."""
    check_at_least_one(n, "n")
    check_texts(n)
    choices = text.choices
    tokens, sizes = text.tokens(choices)
    chosen = torch.zeros(n, dtype=torch.long)
    if len(choices) > 1:
        weights = _choice_probs(hmm, text, ends)
        chosen = torch.multinomial(weights, n, replacement=True, generator=generator).cpu()
    used, which, counts = chosen.unique(return_inverse=True, return_counts=True)
    rows = hmm.fill(tokens[used], int(counts.max()), generator, sizes[used], ends).tolist()
    return [text.filled(rows[i].pop(), choices[int(used[i])]) for i in which.tolist()]


def word_probs(hmm: HMM, text: GappedText, ends: bool) -> FillProbs:
    """As `HMM.fill_probs`; ValueError if a gap has a range of lengths."""
    if len(text.choices) > 1:
        raise ValueError(
            "the probabilities of words need gaps of known lengths; write ___2 instead of ___1-3"
        )
    tokens, sizes = text.tokens(text.choices)
    return hmm.fill_probs(tokens, sizes, ends)


def length_probs(hmm: HMM, text: GappedText, ends: bool) -> dict[Lengths, float]:
    """p(lengths of the gaps | known words) for every combination of them."""
    return dict(zip(text.choices, _choice_probs(hmm, text, ends).tolist(), strict=True))


def best(hmm: HMM, text: GappedText, k: int, ends: bool) -> Best:
    """The k likeliest fillings over all lengths, or all that there are.

    Where a text fits in several ways, because gaps are adjacent or the known words between them
    also occur in them, each way is a filling, as it is for samples and for p(lengths).
    """
    tokens, sizes = text.tokens(text.choices)
    answer = hmm.best_fill(tokens, k, sizes, ends)
    found: list[tuple[float, Filled]] = []
    for lengths, rows, scores in zip(
        text.choices, answer.words.tolist(), answer.log_prob.tolist(), strict=True
    ):
        for row, log_prob in zip(rows, scores, strict=True):
            if log_prob > -math.inf:
                found.append((log_prob, text.filled(row, lengths)))
    ranked = sorted(found, key=lambda pair: -pair[0])[:k]
    exact = bool(answer.exact.all())
    return Best([filled for _, filled in ranked], [log_prob for log_prob, _ in ranked], exact)


def _choice_probs(hmm: HMM, text: GappedText, ends: bool) -> Tensor:
    tokens, sizes = text.tokens(text.choices)
    log_probs = hmm.known_log_prob(tokens, sizes, ends)
    if not bool((log_probs > -torch.inf).any()):
        raise ValueError(IMPOSSIBLE)
    return log_probs.softmax(0)


def _read(lm: LM, text: str, open_end: bool) -> tuple[HMM, GappedText]:
    return hmm_of(lm, "fillings"), GappedText.read(text, lm.tokenizer, open_end)


def _ruled(
    lm: LM, hmm: HMM, gapped: GappedText, ends: bool, rule: Rule | None, no_unk: bool
) -> RuledGaps | None:
    """The questions under a rule or without unknown words; None where neither is asked for."""
    without = unknown_ids(lm.tokenizer) if no_unk else []
    if rule is None and not without:
        return None
    if ends:
        raise ValueError("under a rule a gap holds no end mark; leave out `ends`")
    return RuledGaps(hmm, gapped, rule, [lm.tokenizer.end, *without])


def _filling(lm: LM, filled: Filled) -> Filling:
    return Filling(lm.decode(filled.ids), [_tokens(lm.tokenizer, gap) for gap in filled.words])


def _tokens(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    return [tokenizer.token(i) for i in ids]
