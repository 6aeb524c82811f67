"""The objects that answer questions, key by key.

Each has "version", the version of this form: it grows when a key changes its meaning or goes away,
not when one is added. Log-probabilities are natural logarithms. What "log_prob" and its relatives
are of is part of their names:

    log_prob           a whole text, which ends: with its end mark
    log_prob_begins    a text that may go on: without an end mark
    log_prob_path      a text that may go on, together with its likeliest states
    log_prob_next      a word, given the words before it
    log_prob_filling   what stands in gaps, given everything that is known around them
    log_prob_rule      that the words to come satisfy a rule and end

None (null) stands for minus infinity, that is for a probability of zero.
"""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired, TypedDict

VERSION = 1

Version = Annotated[int, "The version of this form, 1."]
LogProb = float | None
Unknown = Annotated[
    list[str], "Words of what was asked that the vocabulary does not have, each once."
]


class WordScore(TypedDict):
    """A word of a scored text."""

    word: Annotated[str, "The token, as the vocabulary has it."]
    log_prob_next: Annotated[LogProb, "log p(word | words before it)."]
    surprisal_bits: Annotated[float | None, "-log2 p(word | words before it)."]
    is_unknown: Annotated[bool, "Whether it stands for a word that the vocabulary does not have."]


class ScoredText(TypedDict):
    """A text and its probability."""

    text: Annotated[str, "The text as it was given."]
    log_prob: Annotated[LogProb, "log p(text with its end mark)."]
    tokens: Annotated[int, "Its number of tokens, with the end mark."]
    perplexity: Annotated[float | None, "exp(-log_prob / tokens)."]
    unknown: Unknown
    words: Annotated[NotRequired[list[WordScore]], "With `words`: every token, the end mark last."]


class Scores(TypedDict):
    """The answer to `score`."""

    version: Version
    lines: Annotated[list[ScoredText], "One for each text, in their order."]


class NextWord(TypedDict):
    """A word that may come next."""

    word: Annotated[str, "The token, as the vocabulary has it."]
    prob: Annotated[float, "p(word | words before it), under a rule given that it will hold."]
    log_prob_next: Annotated[LogProb, "The logarithm of `prob`."]


class NextWords(TypedDict):
    """The answer to `next`."""

    version: Version
    prefix: Annotated[str, "The text so far."]
    unknown: Unknown
    next: Annotated[list[NextWord], "The likeliest words, the likeliest first."]


class SampledText(TypedDict):
    """A text that was drawn."""

    text: Annotated[str, "The text, with the prefix."]
    tokens: Annotated[int, "Tokens after the prefix, without the end mark."]
    ended: Annotated[bool, "Whether the end mark was drawn; otherwise the text was cut."]


class Samples(TypedDict):
    """The answer to `sample`."""

    version: Version
    prefix: Annotated[str, "What every text begins with."]
    unknown: Unknown
    texts: Annotated[list[SampledText], "The texts in the order in which they were drawn."]


class Filling(TypedDict):
    """A text whose gaps are filled."""

    text: Annotated[str, "The whole text."]
    words: Annotated[list[list[str]], "The tokens in each gap."]
    prob: Annotated[NotRequired[float], "With kind best: p(filling | all that is known)."]
    log_prob_filling: Annotated[NotRequired[LogProb], "The logarithm of `prob`."]
    log_prob: Annotated[
        NotRequired[LogProb], "With kind best: log p(whole text with its end mark)."
    ]
    log_prob_begins: Annotated[
        NotRequired[LogProb], "The same where the end is open: without an end mark."
    ]


class GapLengths(TypedDict):
    """A combination of lengths of the gaps."""

    lengths: Annotated[list[int], "The number of words in each gap."]
    prob: Annotated[float, "p(lengths | all that is known)."]


class GapWord(TypedDict):
    """A word that may stand in a gap."""

    word: Annotated[str, "The token, as the vocabulary has it."]
    prob: Annotated[float, "p(word here | all that is known)."]
    log_prob_filling: Annotated[LogProb, "The logarithm of `prob`."]


class GapPlace(TypedDict):
    """One place in a gap."""

    gap: Annotated[int, "The number of the gap, from 1."]
    word: Annotated[int, "The number of the place in it, from 1."]
    words: Annotated[list[GapWord], "The likeliest words there, the likeliest first."]


class Fillings(TypedDict):
    """The answer to `fill`."""

    version: Version
    text: Annotated[str, "The text with its gaps, as it was given."]
    unknown: Unknown
    kind: Annotated[Literal["samples", "best", "probs"], "What was asked for."]
    fillings: Annotated[
        NotRequired[list[Filling]], "With kind samples and best: the texts, best first for best."
    ]
    exact: Annotated[
        NotRequired[bool], "With kind best: whether no likelier filling can have been missed."
    ]
    lengths: Annotated[
        NotRequired[list[GapLengths]],
        "With kind probs, where lengths are open: the likeliest, the likeliest first.",
    ]
    gaps: Annotated[
        NotRequired[list[GapPlace]],
        "With kind probs: every place of the gaps, of the likeliest lengths.",
    ]


class StateAt(TypedDict):
    """A state, how likely it is where it is named, and its words."""

    state: Annotated[int, "The number of the state."]
    prob: Annotated[float, "Its probability: that of the key under which it stands."]
    words: Annotated[list[str], "Its likeliest words, the likeliest first."]


class TaggedWord(TypedDict):
    """A word of a text and its state on the likeliest path."""

    word: Annotated[str, "The token, as the vocabulary has it."]
    state: Annotated[int, "The state on the likeliest path."]
    prob: Annotated[float, "p(that state here | text), over all paths."]
    words: Annotated[list[str], "The likeliest words of the state."]


class Tags(TypedDict):
    """The answer to `tag`."""

    version: Version
    text: Annotated[str, "The text as it was given."]
    unknown: Unknown
    log_prob_path: Annotated[LogProb, "log p(text, likeliest states); the text may go on."]
    log_prob_begins: Annotated[LogProb, "log p(text), over all states; the text may go on."]
    tokens: Annotated[list[TaggedWord], "The words of the text in their order."]


class PosteriorAt(TypedDict):
    """A word of a text and the states that may have emitted it."""

    word: Annotated[str, "The token, as the vocabulary has it."]
    states: Annotated[list[StateAt], "The likeliest states here, by p(state | text)."]


class Posteriors(TypedDict):
    """The answer to `posterior`."""

    version: Version
    text: Annotated[str, "The text as it was given."]
    unknown: Unknown
    log_prob_begins: Annotated[LogProb, "log p(text); the text may go on."]
    tokens: Annotated[list[PosteriorAt], "The words of the text in their order."]


class StateWord(TypedDict):
    """A word of a state."""

    word: Annotated[str, "The token, as the vocabulary has it."]
    prob: Annotated[float, "p(word | state)."]


class State(TypedDict):
    """A state of the model."""

    state: Annotated[int, "Its number."]
    block: Annotated[int | None, "The block of words that it emits; null without blocks."]
    share: Annotated[float | None, "The share of the text that it emits; null without a text."]
    prob_word: Annotated[
        float | None, "p(state | the word that was asked for), in that text; null without a word."
    ]
    prob_end: Annotated[float, "p(end mark | state)."]
    starts_anew: Annotated[
        bool,
        "Whether it mostly emits the end mark, after which text starts anew: `next` are then the "
        "states that texts begin with.",
    ]
    words: Annotated[list[StateWord], "Its likeliest words, the likeliest first."]
    next: Annotated[list[StateAt], "The likeliest states after it, by p(next | state)."]
    previous: Annotated[
        list[StateAt],
        "The likeliest states before it, by p(previous | state) within a text; where texts begin "
        "is not among them.",
    ]


class States(TypedDict):
    """The answer to `states`."""

    version: Version
    num_states: Annotated[int, "How many states the model has."]
    split: Annotated[str | None, "The part of the corpus that shares are of; null without one."]
    states: Annotated[list[State], "The states that were asked for, or the first of all."]


class Perplexity(TypedDict):
    """The answer to `eval`."""

    version: Version
    split: Annotated[str | None, "The part that was evaluated; all for a text without parts."]
    perplexity: Annotated[float | None, "exp(-log_prob / tokens); null where it is infinite."]
    log_prob: Annotated[LogProb, "log p(the text with all its end marks)."]
    tokens: Annotated[int, "Every token counts, end marks and unknown words too."]
    unknown_tokens: Annotated[
        int, "How many of them stand for words which the vocabulary does not have."
    ]
    perplexity_known: Annotated[
        float | None, "The perplexity of the other tokens, each given all that stands before it."
    ]
    convention: Annotated[
        Literal["reset", "carry"],
        "After an end mark: text starts anew, or states are carried on.",
    ]
    vocabulary: Annotated[str, "The hash of the vocabulary; other vocabularies do not compare."]
    unigram_perplexity: Annotated[
        float | None,
        "That of the word frequencies of the training text; null for a text without one.",
    ]
    largest_deviation_from_one: Annotated[
        NotRequired[float], "With check_normalised: of the sums of next-word probabilities."
    ]


class RuleAnswer(TypedDict):
    """The answer to `rule`."""

    version: Version
    prefix: Annotated[str, "What stands before the words that the rule is about."]
    unknown: Unknown
    rule: Annotated[str, "The rule in words."]
    length: Annotated[int, "Tokens after the prefix at most, the end mark not counted."]
    possible: Annotated[bool, "Whether the rule can hold."]
    why_not: Annotated[str | None, "Why it cannot hold, as one sentence; null if it can."]
    prob: Annotated[float, "p(the text ends in time and satisfies the rule | prefix)."]
    log_prob_rule: Annotated[LogProb, "The logarithm of `prob`."]
    prob_ends: Annotated[float, "p(the text ends in time | prefix), with or without the rule."]
