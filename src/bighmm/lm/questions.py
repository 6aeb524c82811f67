"""Questions about text that any language model answers: scores, next words, samples.

`length` means the same in all of them, and in every command: at most so many tokens after the
prefix, the end mark not counted. Without a rule a text ends at its end mark or is cut after
`length` tokens; under a rule it always ends. Rules need an HMM.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Integral

import torch
from torch import Tensor

from bighmm.base.randomness import generator_for
from bighmm.base.settings import check_at_least_one
from bighmm.data.tokenizers import Tokenizer, unknown_words
from bighmm.hmm import HMM
from bighmm.infer.rules.rules import LONGEST, excludes, why_impossible
from bighmm.infer.sample import Sharpness, check_request, collect, without_tokens
from bighmm.infer.sequences import padded
from bighmm.lm.options import DEFAULT_LENGTH
from bighmm.lm.protocol import LM, Predictor
from bighmm.lm.rules import Rule, until
from bighmm.lm.stepping import state_after, stepper_of

LINES_AT_ONCE = 512
TOKENS_AT_ONCE = 2**14  # padding included
MOST_TEXTS = 1_000_000  # that are drawn at a time


@dataclass(frozen=True)
class WordScore:
    """A token of a line and its probability given those before it."""

    word: str
    log_prob_next: float  # log p(word | those before it), in nats
    is_unknown: bool  # whether the word is not in the vocabulary


@dataclass(frozen=True)
class Score:
    """The probability of one line."""

    text: str
    log_prob: float  # in nats, of the line with its end mark
    tokens: int  # with the end mark
    perplexity: float  # exp(-log_prob / tokens)
    unknown: list[str]  # its words that are not in the vocabulary, each once
    words: list[WordScore] | None = None  # every token, if they were asked for


@dataclass(frozen=True)
class WordProb:
    """A token of the vocabulary and its probability after a text."""

    word: str
    prob: float
    log_prob_next: float  # the logarithm of `prob`, in nats


@dataclass(frozen=True)
class Sample:
    """A text drawn from a model."""

    text: str  # with the prefix
    ids: list[int]  # the tokens after the prefix, without the end mark
    ended: bool  # whether the end mark was drawn; otherwise the text was cut


def score(lm: LM, texts: Sequence[str], words: bool = False) -> list[Score]:
    """log p of each text with its end mark, and its perplexity. A text is one line.

    words: also log p of every token, given those before it.
    """
    return list(scores(lm, texts, words))


def scores(lm: LM, texts: Iterable[str], words: bool = False) -> Iterator[Score]:
    """As `score`, one after the other as soon as they are there."""
    for some in _batches(lm, texts):
        tokens, lengths = padded([row for _, row in some])
        each = None
        if words:
            each = token_log_probs(lm.predictor(), tokens, lengths)
            log_probs = each.sum(1).tolist()
        else:
            log_probs = lm.predictor().log_prob(tokens, lengths).tolist()
        for number, ((text, row), log_prob) in enumerate(zip(some, log_probs, strict=True)):
            perplexity = math.exp(min(-log_prob / len(row), 700))
            unknown = unknown_words(lm.tokenizer, text)
            found = Score(text, log_prob, len(row), perplexity, unknown)
            if each is not None:
                of_words = each[number, : len(row)].tolist()
                found = replace(found, words=_word_scores(lm.tokenizer, row, of_words))
            yield found


def next_words(
    lm: LM,
    prefix: str = "",
    n: int = 10,
    rule: Rule | None = None,
    length: int | None = None,
    no_unk: bool = False,
) -> list[WordProb]:
    """The n likeliest next tokens after `prefix`, without those of probability zero.

    With a rule, given that the text ends after at most `length` (100) more tokens, which satisfy
    it. Raises ValueError with the reason if they cannot, and if `lm` is not an HMM.

    no_unk: given that the next word is not the mark of unknown words; with a rule, that none of
        the words to come is.
    """
    check_at_least_one(n, "n")
    predictor = lm.predictor()
    if no_unk and rule is not None:
        rule, no_unk = without_unknown(lm.tokenizer, rule), False
    if rule is None and isinstance(predictor, HMM) and not no_unk:
        best = predictor.best_next(torch.tensor([lm.encode(prefix)], dtype=torch.long), n)
        found = _words(lm.tokenizer, best.tokens[0], best.log_prob[0])
        return [WordProb(word, math.exp(log_prob), log_prob) for word, log_prob in found]
    log_probs = next_log_probs(lm, prefix, rule, length)
    if rule is not None and not bool((log_probs > -torch.inf).any()):
        room = check_length(length, rule)
        reason = why_impossible(rule, lm.tokenizer.size, room, exact=False)
        raise ValueError(reason or f"the rule {rule} has probability zero after this prefix")
    if no_unk:
        log_probs = without_tokens(log_probs.unsqueeze(0), unknown_ids(lm.tokenizer)).squeeze(0)
    found = likeliest_words(lm.tokenizer, log_probs, n)
    return [WordProb(word, math.exp(log_prob), log_prob) for word, log_prob in found]


def sample(
    lm: LM,
    n: int = 1,
    prefix: str = "",
    length: int | None = None,
    rule: Rule | Sequence[Rule] | None = None,
    temperature: float = 1.0,
    seed: int | None = None,
    generator: torch.Generator | None = None,
    *,
    top_k: int | None = None,
    top_p: float = 1.0,
    no_unk: bool = False,
) -> list[Sample]:
    """n texts that begin with `prefix` and go on for at most `length` (100) tokens.

    With a rule, or one for each text, the tokens after the prefix satisfy it and the text ends.
    top_k, top_p: draw among the likeliest tokens only, so many or of this probability in all.
    no_unk: no token is the mark of unknown words. With a rule that is part of the rule; without
        one, each token is drawn given that it is another.
    The same seed gives the same texts; without a seed and a generator they differ every time.
    Raises ValueError with the reason if a rule cannot hold, and if there is a rule but `lm` is not
    an HMM.
    """
    if seed is not None and generator is not None:
        raise ValueError("random numbers come from a seed or a generator; give only one of them")
    if generator is None:
        generator = generator_for(lm.device, seed)
    without = tuple(unknown_ids(lm.tokenizer)) if no_unk else ()
    sharpness = Sharpness(temperature, top_k, top_p, without)
    return draw_texts(lm, n, prefix, length, rule, sharpness, generator)


def draw_texts(
    lm: LM,
    n: int,
    prefix: str,
    length: int | None,
    rule: Rule | Sequence[Rule] | None,
    sharpness: Sharpness,
    generator: torch.Generator | None,
) -> list[Sample]:
    """As `sample`; without a generator the random numbers are torch's global ones."""
    check_texts(n)
    room, before, end = check_length(length, rule), lm.encode(prefix), lm.tokenizer.end
    check_request(n, None, room, sharpness.temperature)
    predictor, temperature = lm.predictor(), sharpness.temperature
    top_k, top_p, without = sharpness.top_k, sharpness.top_p, sharpness.without
    if rule is not None:
        if without:
            given = [rule] if isinstance(rule, Rule) else rule
            made = [without_unknown(lm.tokenizer, one) for one in given]
            rule = made[0] if isinstance(rule, Rule) else made
        hmm = hmm_of(lm, "samples under a rule")  # there the end mark is one of the tokens
        drawn = hmm.sample(
            n, None, before, generator, temperature, room + 1, rule, top_k=top_k, top_p=top_p
        )
    elif isinstance(predictor, HMM):
        drawn = predictor.sample(
            n, None, before, generator, temperature, room, top_k=top_k, top_p=top_p, without=without
        )
    elif top_k is None and top_p == 1 and not without:
        drawn = predictor.sample(n, None, before, generator, temperature, max_length=room)
    else:
        drawn = _draw_step_by_step(lm, n, before, room, sharpness, generator)
    texts = []
    for row in drawn.tolist():
        ended = end in row
        ids = row[: row.index(end)] if ended else row
        texts.append(Sample(lm.decode([*before, *ids]), ids, ended))
    return texts


def next_log_probs(
    lm: LM, prefix: str, rule: Rule | None = None, length: int | None = None
) -> Tensor:
    """log p(next token | prefix) (V,), under a rule as for `next_words`.

    -inf throughout where the rule cannot hold.
    """
    ids = torch.tensor([lm.encode(prefix)], dtype=torch.long)
    if rule is None:
        return lm.predictor().next_token(ids)[0]
    ended = until(rule, lm.tokenizer.end)
    remaining = check_length(length, rule) + 1  # with the end mark
    return hmm_of(lm, "answers under a rule").next_token(ids, None, ended, remaining)[0]


def likeliest_words(tokenizer: Tokenizer, log_probs: Tensor, n: int) -> list[tuple[str, float]]:
    """The n likeliest tokens by log_probs (V,), and theirs, the likeliest first.

    Impossible ones are left out.
    """
    top = log_probs.topk(min(n, len(log_probs)))
    return _words(tokenizer, top.indices, top.values)


def unknown_ids(tokenizer: Tokenizer) -> list[int]:
    """The id of the mark of unknown words, where there is one."""
    return [] if tokenizer.unknown is None else [tokenizer.unknown]


def without_unknown(tokenizer: Tokenizer, rule: Rule) -> Rule:
    """The rule, and that no word is unknown."""
    marks = unknown_ids(tokenizer)
    return rule & excludes([[mark] for mark in marks]).called("no unknown word") if marks else rule


def hmm_of(lm: LM, what: str) -> HMM:
    """The HMM of a model; ValueError if it is none and so has no `what`."""
    predictor = lm.predictor()
    if not isinstance(predictor, HMM):
        raise ValueError(f"the model is not a hidden Markov model, so it has no {what}")
    return predictor


def check_texts(n: int) -> None:
    """Raises ValueError for no text, and for more than are drawn at a time."""
    check_at_least_one(n, "n")
    if n > MOST_TEXTS:
        raise ValueError(f"at most {MOST_TEXTS:,} texts are drawn at a time, not {n}; ask again")


def check_length(length: int | None, rule: object = None) -> int:
    """The number of tokens that a text may have after its prefix; ValueError if it cannot be."""
    if length is None:
        return DEFAULT_LENGTH
    if not isinstance(length, Integral) or length < 0:
        raise ValueError(f"a text has at least 0 tokens after its prefix, not {length!r}")
    if rule is not None and length > LONGEST:
        raise ValueError(
            f"under a rule a text has at most {LONGEST} tokens after its prefix, not {length}"
        )
    return length


def _draw_step_by_step(
    lm: LM,
    n: int,
    before: list[int],
    room: int,
    sharpness: Sharpness,
    generator: torch.Generator | None,
) -> Tensor:
    """n samples (n, L) of what follows token ids, token by token, from a model of any family."""
    stepper = stepper_of(lm)
    state = state_after(stepper, [before] * n)

    def step(place: int) -> Tensor:
        nonlocal state
        log_probs, predicted = stepper.predict(state)
        tokens = sharpness.draw(log_probs, generator)
        state = stepper.after(predicted, tokens)
        return tokens

    with torch.no_grad():
        return collect(step, n, room, lm.tokenizer.end, stepper.device)


def _words(tokenizer: Tokenizer, ids: Tensor, log_probs: Tensor) -> list[tuple[str, float]]:
    """Tokens (n,) with their log-probabilities (n,), without impossible ones."""
    return [
        (tokenizer.token(i), p)
        for i, p in zip(ids.tolist(), log_probs.tolist(), strict=True)
        if p > -math.inf
    ]


def _batches(lm: LM, texts: Iterable[str]) -> Iterator[list[tuple[str, list[int]]]]:
    """Texts with their tokens, those together that are worked on together and fit in memory."""
    some: list[tuple[str, list[int]]] = []
    longest = 0
    for text in texts:
        row = [*lm.encode(text), lm.tokenizer.end]
        longest = max(longest, len(row))
        if some and (len(some) == LINES_AT_ONCE or (len(some) + 1) * longest > TOKENS_AT_ONCE):
            yield some
            some, longest = [], len(row)
        some.append((text, row))
    if some:
        yield some


def token_log_probs(predictor: Predictor, tokens: Tensor, lengths: Tensor) -> Tensor:
    """log p (B, T) of every token given those before it, 0 in the padding."""
    ask = getattr(predictor, "token_log_probs", None)
    if ask is not None:
        return ask(tokens, lengths).double()
    before = torch.zeros(len(tokens), dtype=torch.float64)  # a family that only sums
    found = []
    for place in range(tokens.shape[1]):
        so_far = predictor.log_prob(tokens[:, : place + 1], lengths.clamp(max=place + 1)).double()
        found.append(so_far.cpu() - before)
        before = so_far.cpu()
    return torch.stack(found, dim=1)


def _word_scores(tokenizer: Tokenizer, ids: list[int], log_probs: list[float]) -> list[WordScore]:
    return [
        WordScore(tokenizer.token(i), log_prob, i == tokenizer.unknown)
        for i, log_prob in zip(ids, log_probs, strict=True)
    ]
