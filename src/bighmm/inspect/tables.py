"""Tables for people and for JSON: states by their words, and the states of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from bighmm.base.settings import check_at_least_one
from bighmm.inspect.choosing import (
    MOSTLY,
    Order,
    block_of_states,
    choose_states,
    probs_given_word,
    word_id,
)
from bighmm.inspect.states import (
    Likeliest,
    check_states,
    end_probs,
    first_states,
    likely_words,
    next_states,
    previous_states,
    state_shares,
)
from bighmm.lm import tagging
from bighmm.lm.hmmlm import HMMLM

if TYPE_CHECKING:
    from bighmm.data.corpus import Corpus


@dataclass(frozen=True)
class StatesOfCorpus:
    """Some states of a model, with their shares of a text."""

    num_states: int  # of the model
    split: str | None  # of the corpus that shares are of; None without a corpus
    states: list[Any]  # rows of `state_table`


def states_of_corpus(
    lm: HMMLM,
    corpus: Corpus | None = None,
    split: str = "valid",
    *,
    states: Sequence[int] = (),
    word: str | None = None,
    block: int | None = None,
    top: int = 10,
    sort: Order = "share",
    words: int = 6,
    neighbours: int = 3,
    shares: Tensor | None = None,
) -> StatesOfCorpus:
    """The `state_table` of some states, with the share of a corpus' split that each emits.

    states: these, in this order. Otherwise the first `top` of those of a `word`, of a `block` or of
    all, see `choosing.choose_states`: by their share (which needs a corpus), or by their numbers.
    shares: those of the split (Z,), where they are known already; no corpus is needed then.
    """
    for name, number in (("top", top), ("words", words), ("neighbours", neighbours)):
        check_at_least_one(number, name)
    check_choice(lm, states, word, block)
    hmm = lm.hmm()
    if corpus is not None and shares is None:
        shares = state_shares(hmm, corpus.split(split), corpus.documents(split))
    chosen = choose_states(
        lm, states=states, word=word, block=block, top=top, sort=sort, shares=shares
    )
    rows = state_table(lm, chosen, words=words, neighbours=neighbours, shares=shares)
    if word is not None:
        given_word = probs_given_word(hmm, word_id(lm, word), shares)
        rows = [row | {"prob_word": float(given_word[row["state"]])} for row in rows]
    return StatesOfCorpus(hmm.num_states, split if shares is not None else None, rows)


def check_choice(
    lm: HMMLM, states: Sequence[int] = (), word: str | None = None, block: int | None = None
) -> None:
    """Raises ValueError for a state, word or block that is not there, before a text is read."""
    if states:
        check_states(lm.hmm(), list(states))
    choose_states(lm, states=states, word=word, block=block, top=1, sort="number")


class TaggedTable(NamedTuple):
    """A text with its likeliest states; it may go on."""

    log_prob_path: float  # log p(text, states)
    log_prob_begins: float  # log p(text)
    rows: list[Any]  # {"word", "state", "prob": p(state | text), "words"} of each token


def tag_table(lm: HMMLM, text: str, *, words: int = 6) -> TaggedTable:
    """The likeliest state path of a text, as `lm.tagging.tag`, with the words of its states.

    Raises ValueError for a text without tokens, or one that the model gives probability zero.
    """
    check_at_least_one(words, "words")
    found = tagging.tag(lm, text)
    names = words_by_state(lm, sorted({one.state for one in found.words}), words)
    rows = [
        {"word": one.word, "state": one.state, "prob": one.prob, "words": names[one.state]}
        for one in found.words
    ]
    return TaggedTable(found.log_prob_path, found.log_prob_begins, rows)


def state_table(
    lm: HMMLM,
    states: list[int],
    *,
    words: int = 6,
    neighbours: int = 3,
    shares: Tensor | None = None,
) -> list[dict[str, Any]]:
    """The likeliest words of each state, and the states before and after it with their words.

    {"state", "block", "share", "prob_word", "prob_end", "starts_anew", "words": [{"word", "prob"}],
    "next": [{"state", "prob", "words"}], "previous": the same}. `answers.objects.State` says what
    each is. `shares` (Z,) are those of `state_shares`; they weight the previous states.
    """
    hmm = lm.hmm()
    own = likely_words(hmm, states, words)
    after = next_states(hmm, states, neighbours)
    before = previous_states(hmm, states, neighbours, shares)
    begin = first_states(hmm, neighbours)
    near = {i for found in (after, before, begin) for i in found.ids.view(-1).tolist() if i >= 0}
    names = words_by_state(lm, sorted(near), words)
    ended, blocks = end_probs(hmm)[states].tolist(), block_of_states(hmm)
    rows = []
    for n, state in enumerate(states):
        anew = hmm.reset and ended[n] > MOSTLY
        rows.append(
            {
                "state": state,
                "block": None if blocks is None else int(blocks[state]),
                "share": None if shares is None else float(shares[state]),
                "prob_word": None,
                "prob_end": ended[n],
                "starts_anew": anew,
                "words": [
                    {"word": lm.tokenizer.token(i), "prob": prob} for i, prob in _pairs(own, n)
                ],
                "next": _neighbours(begin, 0, names) if anew else _neighbours(after, n, names),
                "previous": _neighbours(before, n, names),
            }
        )
    return rows


def posterior_table(
    lm: HMMLM, text: str, *, top: int = 5, words: int = 6
) -> tuple[float, list[Any]]:
    """log p(text), and p(state | text) of the likeliest states at every token of it.

    {"word", "states": [{"state", "prob", "words"}]} for each token. Raises ValueError for a text
    without tokens, or one that the model gives probability zero.
    """
    check_at_least_one(words, "words")
    found = tagging.posterior(lm, text, top)
    likely = {state.state for one in found.words for state in one.states}
    names = words_by_state(lm, sorted(likely), words)
    rows = [
        {
            "word": one.word,
            "states": [
                {"state": state.state, "prob": state.prob, "words": names[state.state]}
                for state in one.states
            ],
        }
        for one in found.words
    ]
    return found.log_prob_begins, rows


def words_by_state(lm: HMMLM, states: list[int], number: int) -> dict[int, list[str]]:
    """The likeliest words of some states."""
    if not states:
        return {}
    found = likely_words(lm.hmm(), states, number)
    return {
        state: [lm.tokenizer.token(i) for i, _ in _pairs(found, n)]
        for n, state in enumerate(states)
    }


def _neighbours(found: Likeliest, n: int, names: dict[int, list[str]]) -> list[dict[str, Any]]:
    return [
        {"state": state, "prob": prob, "words": names[state]} for state, prob in _pairs(found, n)
    ]


def _pairs(found: Likeliest, n: int) -> list[tuple[int, float]]:
    both = zip(found.ids[n].tolist(), found.probs[n].tolist(), strict=True)
    return [(number, prob) for number, prob in both if number >= 0]
