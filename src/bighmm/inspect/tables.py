"""Tables for people and for JSON: states by their words, and the states of a text."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from bighmm.inspect.states import Likeliest, likely_words, next_states, previous_states
from bighmm.lm.hmmlm import HMMLM


def state_table(
    lm: HMMLM,
    states: list[int],
    *,
    words: int = 6,
    neighbours: int = 3,
    shares: Tensor | None = None,
) -> list[dict[str, Any]]:
    """Of every state its likeliest words, and the states before and after it with theirs.

    {"state", "share", "words": [{"word", "prob"}], "next": [{"state", "prob", "words"}],
    "previous": the same}. With `shares` (Z,), from `state_shares`, they are in the table and weigh
    the previous states; without them "share" is None.
    """
    hmm = lm.hmm()
    own = likely_words(hmm, states, words)
    after = next_states(hmm, states, neighbours)
    before = previous_states(hmm, states, neighbours, shares)
    near = sorted({i for found in (after, before) for i in found.ids.view(-1).tolist() if i >= 0})
    names = words_by_state(lm, near, words)
    rows = []
    for n, state in enumerate(states):
        rows.append(
            {
                "state": state,
                "share": None if shares is None else float(shares[state]),
                "words": [
                    {"word": lm.tokenizer.token(i), "prob": prob} for i, prob in _pairs(own, n)
                ],
                "next": _neighbours(after, n, names),
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
    ids = lm.encode(text)
    if not ids:
        raise ValueError("the text holds no token that the model could explain")
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


def _neighbours(found: Likeliest, n: int, names: dict[int, list[str]]) -> list[dict[str, Any]]:
    return [
        {"state": state, "prob": prob, "words": names[state]} for state, prob in _pairs(found, n)
    ]


def _pairs(found: Likeliest, n: int) -> list[tuple[int, float]]:
    both = zip(found.ids[n].tolist(), found.probs[n].tolist(), strict=True)
    return [(number, prob) for number, prob in both if number >= 0]
