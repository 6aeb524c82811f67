"""Questions about the states of a text: its likeliest path, and how likely each state is."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from bighmm.base.settings import check_at_least_one
from bighmm.hmm import HMM
from bighmm.lm.protocol import LM
from bighmm.lm.questions import hmm_of


@dataclass(frozen=True)
class TaggedWord:
    """A token and its state on the likeliest path."""

    word: str
    state: int
    prob: float  # p(state | text), over all paths


@dataclass(frozen=True)
class TaggedText:
    """A text, which may go on, with its likeliest state path."""

    words: list[TaggedWord]
    log_prob_path: float  # log p(text, path)
    log_prob_begins: float  # log p(text), without an end mark


@dataclass(frozen=True)
class StateProb:
    """A state and its probability."""

    state: int
    prob: float


@dataclass(frozen=True)
class WordStates:
    """A token and its likeliest states given the text, the likeliest first."""

    word: str
    states: list[StateProb]


@dataclass(frozen=True)
class TextPosterior:
    """A text, which may go on, with the likeliest states of each of its tokens."""

    words: list[WordStates]
    log_prob_begins: float  # log p(text), without an end mark


@torch.no_grad()
def tag(lm: LM, text: str) -> TaggedText:
    """The likeliest state path of a text.

    Raises ValueError for a text without tokens, or one that the model gives probability zero, and
    if `lm` is not an HMM; so does `posterior`.
    """
    hmm, ids = _read(lm, text)
    best, smoothed = hmm.viterbi([ids]), hmm.posterior([ids])
    _check_possible(float(best.log_prob))
    here = smoothed.states[0] == best.states[0].unsqueeze(1)  # (T, K)
    probs = (smoothed.marginals[0] * here).sum(1).tolist()
    path = best.states[0].tolist()
    words = [
        TaggedWord(lm.tokenizer.token(token), state, prob)
        for token, state, prob in zip(ids, path, probs, strict=True)
    ]
    return TaggedText(words, float(best.log_prob), float(smoothed.log_prob))


@torch.no_grad()
def posterior(lm: LM, text: str, top: int = 5) -> TextPosterior:
    """p(state | text) of the `top` likeliest states at every token of a text."""
    check_at_least_one(top, "top")
    hmm, ids = _read(lm, text)
    found = hmm.posterior([ids])
    _check_possible(float(found.log_prob))
    best = found.marginals[0].topk(min(top, found.marginals.shape[2]))
    states = found.states[0].gather(1, best.indices).tolist()
    words = []
    for token, row, probs in zip(ids, states, best.values.tolist(), strict=True):
        likely = [StateProb(z, p) for z, p in zip(row, probs, strict=True) if p > 0 and z >= 0]
        words.append(WordStates(lm.tokenizer.token(token), likely))
    return TextPosterior(words, float(found.log_prob))


def _read(lm: LM, text: str) -> tuple[HMM, list[int]]:
    hmm, ids = hmm_of(lm, "states"), lm.encode(text)
    if not ids:
        raise ValueError("the text holds no token that the model could explain")
    return hmm, ids


def _check_possible(log_prob: float) -> None:
    if log_prob == -torch.inf:
        raise ValueError("the text has probability zero in this model, so it has no states")
