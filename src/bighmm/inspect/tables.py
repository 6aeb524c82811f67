"""Tables for people and for JSON: states by their words, and the states of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from bighmm.base.settings import check_at_least_one
from bighmm.inspect.choosing import (
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
from bighmm.lm.hmmlm import HMMLM

if TYPE_CHECKING:
    from bighmm.data.corpus import Corpus

ALWAYS = 1 - 1e-6  # a state that emits the end mark with this probability emits nothing else


@dataclass(frozen=True)
class StatesOfCorpus:
    """Some states of a model, with their shares of a text."""

    num_states: int  # of the model
    split: str | None  # of the corpus that shares are of; None without a corpus
    states: list[dict[str, Any]]  # rows of `state_table`


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
    hmm = lm.hmm()
    # Before anything that takes long.
    check_states(hmm, list(states) or [0])
    token = None if word is None else word_id(lm, word)
    if corpus is not None and shares is None:
        shares = state_shares(hmm, corpus.split(split), corpus.documents(split))
    chosen = choose_states(
        lm, states=states, word=word, block=block, top=top, sort=sort, shares=shares
    )
    rows = state_table(lm, chosen, words=words, neighbours=neighbours, shares=shares)
    if token is not None:
        given_word = probs_given_word(hmm, token, shares)
        rows = [row | {"prob_word": float(given_word[row["state"]])} for row in rows]
    return StatesOfCorpus(hmm.num_states, split if shares is not None else None, rows)


class TaggedText(NamedTuple):
    """A text with its likeliest states; it may go on."""

    log_prob_path: float  # log p(text, states)
    log_prob: float  # log p(text)
    rows: list[dict[str, Any]]  # {"word", "state", "prob": p(state | text), "words"} of each token


@torch.no_grad()
def tag_table(lm: HMMLM, text: str, *, words: int = 6) -> TaggedText:
    """The likeliest state path of a text, with the likeliest words of its states.

    Raises ValueError for a text without tokens, or one that the model gives probability zero.
    """
    check_at_least_one(words, "words")
    ids = _tokens(lm, text)
    tokens = torch.tensor([ids], dtype=torch.long)
    best, smoothed = lm.hmm().viterbi(tokens), lm.hmm().posterior(tokens)
    if not bool(best.log_prob.isfinite()):
        raise ValueError("the text has probability zero in this model, so it has no states")
    path = best.states[0].tolist()
    names = words_by_state(lm, sorted(set(path)), words)
    here = smoothed.states[0] == best.states[0].unsqueeze(1)  # (T, K)
    posteriors = (smoothed.marginals[0] * here).sum(1).tolist()
    rows = [
        {
            "word": lm.tokenizer.token(token),
            "state": state,
            "prob": posterior,
            "words": names[state],
        }
        for token, state, posterior in zip(ids, path, posteriors, strict=True)
    ]
    return TaggedText(float(best.log_prob[0]), float(smoothed.log_prob[0]), rows)


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
        anew = hmm.reset and ended[n] >= ALWAYS
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


@torch.no_grad()
def posterior_table(
    lm: HMMLM, text: str, *, top: int = 5, words: int = 6
) -> tuple[float, list[dict[str, Any]]]:
    """log p(text), and p(state | text) of the likeliest states at every token of it.

    {"word", "states": [{"state", "prob", "words"}]} for each token. Raises ValueError for a text
    without tokens, or one that the model gives probability zero.
    """
    check_at_least_one(top, "top")
    check_at_least_one(words, "words")
    ids = _tokens(lm, text)
    found = lm.hmm().posterior(torch.tensor([ids], dtype=torch.long))
    if not bool(found.log_prob.isfinite()):
        raise ValueError("the text has probability zero in this model, so it has no states")
    best = found.marginals[0].topk(min(top, found.marginals.shape[2]))
    states = found.states[0].gather(1, best.indices)
    likeliest = Likeliest(states.masked_fill(best.values == 0, -1), best.values)
    names = words_by_state(lm, sorted(set(likeliest.ids.view(-1).tolist()) - {-1}), words)
    rows = [
        {"word": lm.tokenizer.token(token), "states": _neighbours(likeliest, t, names)}
        for t, token in enumerate(ids)
    ]
    return float(found.log_prob[0]), rows


def words_by_state(lm: HMMLM, states: list[int], number: int) -> dict[int, list[str]]:
    """The likeliest words of some states."""
    if not states:
        return {}
    found = likely_words(lm.hmm(), states, number)
    return {
        state: [lm.tokenizer.token(i) for i, _ in _pairs(found, n)]
        for n, state in enumerate(states)
    }


def _tokens(lm: HMMLM, text: str) -> list[int]:
    ids = lm.encode(text)
    if not ids:
        raise ValueError("the text holds no token that the model could explain")
    return ids


def _neighbours(found: Likeliest, n: int, names: dict[int, list[str]]) -> list[dict[str, Any]]:
    return [
        {"state": state, "prob": prob, "words": names[state]} for state, prob in _pairs(found, n)
    ]


def _pairs(found: Likeliest, n: int) -> list[tuple[int, float]]:
    both = zip(found.ids[n].tolist(), found.probs[n].tolist(), strict=True)
    return [(number, prob) for number, prob in both if number >= 0]
