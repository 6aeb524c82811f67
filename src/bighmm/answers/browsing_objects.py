"""The objects that a page about a model is made of, key by key, in the manner of `objects`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from bighmm.answers.objects import LogProb, StateWord, Unknown, Version

Name = Annotated[str | None, "The name that a person gave to the state."]
Weights = Annotated[
    Literal["share", "uniform"],
    "Whether states count by their share of the corpus, or equally; times 1 - p(end mark | state).",
]


class SurveyProgress(TypedDict):
    """How far the corpus has been read for shares and contexts."""

    state: Annotated[
        Literal["none", "queued", "running", "done", "failed", "cancelled"],
        "none: there is no corpus to read.",
    ]
    done: Annotated[int | None, "Tokens that have been read."]
    total: Annotated[int | None, "Tokens of the corpus' split."]
    fraction: Annotated[float | None, "done / total."]
    message: Annotated[str | None, "Why there is no survey, as one sentence."]


class StateRow(TypedDict):
    """A row of the table of states."""

    state: Annotated[int, "Its number."]
    block: Annotated[int | None, "Its block; null without blocks."]
    share: Annotated[float | None, "Its share of the corpus; null if that is not known (yet)."]
    entropy_bits: Annotated[float, "The entropy of p(word | state)."]
    name: Name
    words: Annotated[list[StateWord], "Its likeliest words, the likeliest first."]


class StatesPage(TypedDict):
    """A page of the table of states."""

    version: Version
    total: Annotated[int, "States of the model."]
    matching: Annotated[int, "States that match the query."]
    page: Annotated[int, "The number of this page, from 0."]
    size: Annotated[int, "Rows of a page at most."]
    sort: Annotated[str, "What the rows are sorted by."]
    order: Annotated[str, "asc or desc."]
    states: list[StateRow]


class NamedState(TypedDict):
    """A state beside another one."""

    state: int
    prob: Annotated[float, "Its probability before or after the other state."]
    words: Annotated[list[str], "Its likeliest words."]
    name: Name


class StatePage(TypedDict):
    """All about one state."""

    version: Version
    state: int
    block: int | None
    share: float | None
    entropy_bits: float
    name: Name
    prob_end: Annotated[float, "p(end mark | state)."]
    starts_anew: Annotated[bool, "Whether it mostly emits the end mark; `next` then begin texts."]
    words: list[StateWord]
    next: Annotated[list[NamedState], "The likeliest states after it, by p(next | state)."]
    previous: Annotated[list[NamedState], "The likeliest before it, by p(previous | state)."]
    previous_weights: Weights
    lower: Annotated[int | None, "The state with the next lower number."]
    higher: Annotated[int | None, "The state with the next higher number."]


class StateContext(TypedDict):
    """A place of the corpus at which a state is likely."""

    before: Annotated[list[str], "Tokens of the sentence before it."]
    word: str
    after: Annotated[list[str], "Tokens of the sentence after it."]
    prob: Annotated[float, "p(state here | sentence)."]


class BlockRow(TypedDict):
    """A block of the vocabulary."""

    block: int
    size: Annotated[int, "Words in it."]
    share: Annotated[float | None, "Its share of the corpus' tokens; null if not known."]
    words: Annotated[list[str], "Its most frequent words; without a corpus the first by number."]


class Blocks(TypedDict):
    """The blocks of a model."""

    version: Version
    number: int
    states_per_block: int
    blocks: list[BlockRow]


class BlockWord(TypedDict):
    """A word of a block."""

    word: str
    share: Annotated[float | None, "Its share of the block's tokens in the corpus."]


class BlockPage(TypedDict):
    """A block with its words."""

    version: Version
    block: int
    size: int
    first_state: int
    last_state: int
    share: float | None
    page: int
    words: list[BlockWord]


class BlockMoves(TypedDict):
    """Moves between all blocks."""

    version: Version
    number: int
    weights: Weights
    moves: Annotated[
        list[list[float | None]],
        "p(next state in the column's block | a state of the row's block, and the text goes on); "
        "null in rows of blocks without weight.",
    ]


class PairState(TypedDict):
    """A state of a pair of blocks."""

    state: int
    weight: Annotated[float | None, "Its probability within its block, as a beginning or an end."]
    words: list[str]
    name: Name


class BlockPair(TypedDict):
    """Moves from the states of one block to those of another."""

    version: Version
    first: Annotated[int, "The block that is left."]
    second: Annotated[int, "The block that is entered."]
    weights: Weights
    prob: Annotated[float | None, "p(next state in the second block | first block, text goes on)."]
    rows: Annotated[list[PairState], "States of the first block, the heaviest first."]
    columns: Annotated[list[PairState], "States of the second block that are entered most."]
    probs: Annotated[list[list[float]], "p(column's state | row's state)."]


class WrittenWord(TypedDict):
    """A word of a written text."""

    word: str
    log_prob_next: Annotated[LogProb, "log p(word | words before it), without the rule."]
    automaton: Annotated[int | None, "The state of the rule's automaton after it."]
    prob_rule: Annotated[float | None, "p(rule | prefix and the words up to this one)."]


class WrittenText(TypedDict):
    """A text that was drawn, word by word."""

    text: Annotated[str, "The text, with the prefix."]
    ended: Annotated[bool, "Whether the end mark was drawn; otherwise the text was cut."]
    log_prob: Annotated[LogProb, "log p(what follows the prefix | prefix), without the rule."]
    log_prob_given_rule: Annotated[LogProb, "The same given that the rule holds."]
    words: Annotated[list[WrittenWord], "What follows the prefix, the end mark last."]


class Automaton(TypedDict):
    """The automaton of a rule and of the end of the text."""

    states: int
    start: int


class Written(TypedDict):
    """The answer to `write`."""

    version: Version
    prefix: str
    unknown: Unknown
    rule: Annotated[str | None, "The rule in words; null without one."]
    length: Annotated[int, "Tokens after the prefix at most, the end mark not counted."]
    prob: Annotated[float | None, "p(the text ends in time and satisfies the rule | prefix)."]
    log_prob_rule: Annotated[LogProb, "The logarithm of `prob`."]
    prob_ends: Annotated[float | None, "p(the text ends in time | prefix), with or without it."]
    automaton: Annotated[Automaton | None, "Null without a rule."]
    texts: list[WrittenText]


class ComparedWord(TypedDict):
    """A word in several models."""

    word: Annotated[str | None, "What stands between spaces; null for the end mark."]
    bits: Annotated[list[float | None], "Its surprisal by model; null for probability zero."]
    difference: Annotated[float | None, "The second model's bits less the first one's."]
    is_unknown: Annotated[list[bool], "Whether a part of it is not in the vocabulary, by model."]


class ComparedLine(TypedDict):
    """A line in several models."""

    text: str
    log_prob: Annotated[list[LogProb], "Of the line with its end mark, by model."]
    tokens: Annotated[list[int], "With the end mark, by model."]
    words: list[ComparedWord]


class ComparedTotal(TypedDict):
    """All lines together."""

    bits: list[float | None]
    words: Annotated[int, "Words and end marks."]
    perplexity_per_word: Annotated[list[float | None], "2^(bits / words)."]


class Compared(TypedDict):
    """The answer to `compare`."""

    version: Version
    models: list[str]
    lines: list[ComparedLine]
    total: ComparedTotal


class RunCurves(TypedDict):
    """The curves of a run."""

    version: Version
    model: NotRequired[str]
    name: NotRequired[str]
    running: Annotated[bool, "Whether a process trains in the folder now."]
    next: Annotated[int, "Where to go on: `after` of the next request."]
    reset: Annotated[bool, "Whether the log has become shorter: what was read before is void."]
    more: Annotated[bool, "Whether there is more to read already."]
    total_steps: int | None
    steps: Annotated[dict[str, Any], "Columns: step, epoch, loss, lr, tokens, seconds, …"]
    checks: Annotated[dict[str, Any], "Columns: step, perplexity, best."]
