"""Inference that is right because it is simple. Nothing else in the library may use it.

`enumerate_paths` visits every state path of a tiny model. The loops do the textbook recursions in
float64 log space on plain tables, one sequence at a time. Both read `hmm.tables()` only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from bighmm.hmm import HMM


class Enumeration:
    """Every state path of one sequence with its joint probability p(x, z)."""

    def __init__(self, hmm: HMM, tokens: list[int]) -> None:
        self.paths: dict[tuple[int, ...], float] = {(): 1.0}
        self.hmm = hmm
        self.tokens = tokens
        start, transition, emission = (t.double().tolist() for t in hmm.tables())
        for t, token in enumerate(tokens):
            anew = t == 0 or _starts_anew(hmm, tokens[t - 1])
            longer = {}
            for path, prob in self.paths.items():
                moves = start if anew else transition[path[-1]]
                for state, move in enumerate(moves):
                    longer[*path, state] = prob * move * emission[state][token]
            self.paths = longer

    @property
    def prob(self) -> float:
        return sum(self.paths.values())

    def marginals(self) -> Tensor:
        """p(z_t | x) (T, Z)."""
        result = torch.zeros(len(self.tokens), self.hmm.num_states, dtype=torch.float64)
        for path, prob in self.paths.items():
            for t, state in enumerate(path):
                result[t, state] += prob
        return result / self.prob

    def best(self) -> tuple[tuple[int, ...], float]:
        path = max(self.paths, key=lambda p: self.paths[p])
        return path, self.paths[path]

    def next_token(self) -> Tensor:
        """p(x_{T+1} | x) (V,), from the probabilities of all one-token continuations."""
        longer = [
            Enumeration(self.hmm, [*self.tokens, x]).prob for x in range(self.hmm.vocabulary_size)
        ]
        return torch.tensor(longer, dtype=torch.float64) / self.prob


def log_prob_loop(hmm: HMM, tokens: list[int]) -> float:
    """log p(x) by the forward recursion in float64 log space."""
    if not tokens:
        return 0.0
    log_alpha = forward_loop(hmm, tokens)[-1]
    return float(log_alpha.logsumexp(0))


def forward_loop(hmm: HMM, tokens: list[int]) -> Tensor:
    """log p(x_1 … x_t, z_t) (T, Z)."""
    start, transition, emission = _log_tables(hmm)
    rows: list[Tensor] = []
    for t, token in enumerate(tokens):
        if t == 0:
            predicted = start
        elif _starts_anew(hmm, tokens[t - 1]):
            predicted = start + rows[-1].logsumexp(0)
        else:
            predicted = (rows[-1].unsqueeze(1) + transition).logsumexp(0)
        rows.append(predicted + emission[:, token])
    return torch.stack(rows)


def marginals_loop(hmm: HMM, tokens: list[int]) -> Tensor:
    """p(z_t | x) (T, Z) by the forward and backward recursions."""
    start, transition, emission = _log_tables(hmm)
    log_beta = torch.zeros_like(start)
    rows = [log_beta]
    for t in reversed(range(len(tokens) - 1)):
        ahead = emission[:, tokens[t + 1]] + log_beta
        if _starts_anew(hmm, tokens[t]):
            log_beta = (start + ahead).logsumexp(0).expand(len(start))
        else:
            log_beta = (transition + ahead).logsumexp(1)
        rows.append(log_beta)
    joint = forward_loop(hmm, tokens) + torch.stack(rows[::-1])
    return joint.softmax(1)


def next_token_loop(hmm: HMM, tokens: list[int]) -> Tensor:
    """log p(x_{T+1} | x) (V,)."""
    total = log_prob_loop(hmm, tokens)
    longer = [log_prob_loop(hmm, [*tokens, x]) for x in range(hmm.vocabulary_size)]
    return torch.tensor(longer, dtype=torch.float64) - total


def _log_tables(hmm: HMM) -> tuple[Tensor, Tensor, Tensor]:
    every = torch.arange(hmm.num_states)
    exact = hmm.to("cpu", torch.float64)
    transition = exact.transitions.logits(every)
    transition = transition - transition.logsumexp(1, keepdim=True)
    return exact.start, transition, exact.support.emission_rows(exact.emission, every)


def _starts_anew(hmm: HMM, previous: int) -> bool:
    return hmm.reset and hmm.end is not None and previous == hmm.end
