"""Inference that is right because it is simple; for tests only.

`Enumeration` visits every state path of a tiny model. The loops do the textbook recursions in
float64 log space, one sequence at a time. Both read `tables` only.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bighmm.model.model import Model


class Enumeration:
    """Every state path of one sequence with its joint probability p(x, z)."""

    def __init__(self, model: Model, tokens: list[int]) -> None:
        self.paths: dict[tuple[int, ...], float] = {(): 1.0}
        self.model = model
        self.tokens = tokens
        start, transition, emission = (t.exp().tolist() for t in tables(model))
        for t, token in enumerate(tokens):
            anew = t == 0 or _starts_anew(model, tokens[t - 1])
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
        result = torch.zeros(len(self.tokens), self.model.num_states, dtype=torch.float64)
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
            Enumeration(self.model, [*self.tokens, x]).prob
            for x in range(self.model.vocabulary_size)
        ]
        return torch.tensor(longer, dtype=torch.float64) / self.prob


def log_prob_loop(model: Model, tokens: list[int]) -> float:
    """log p(x) by the forward recursion in float64 log space."""
    if not tokens:
        return 0.0
    log_alpha = forward_loop(model, tokens)[-1]
    return float(log_alpha.logsumexp(0))


def forward_loop(model: Model, tokens: list[int]) -> Tensor:
    """log p(x_1 … x_t, z_t) (T, Z)."""
    start, transition, emission = tables(model)
    rows: list[Tensor] = []
    for t, token in enumerate(tokens):
        if t == 0:
            predicted = start
        elif _starts_anew(model, tokens[t - 1]):
            predicted = start + rows[-1].logsumexp(0)
        else:
            predicted = (rows[-1].unsqueeze(1) + transition).logsumexp(0)
        rows.append(predicted + emission[:, token])
    return torch.stack(rows)


def marginals_loop(model: Model, tokens: list[int]) -> Tensor:
    """p(z_t | x) (T, Z) by the forward and backward recursions."""
    start, transition, emission = tables(model)
    log_beta = torch.zeros_like(start)
    rows = [log_beta]
    for t in reversed(range(len(tokens) - 1)):
        ahead = emission[:, tokens[t + 1]] + log_beta
        if _starts_anew(model, tokens[t]):
            log_beta = (start + ahead).logsumexp(0).expand(len(start))
        else:
            log_beta = (transition + ahead).logsumexp(1)
        rows.append(log_beta)
    joint = forward_loop(model, tokens) + torch.stack(rows[::-1])
    return joint.softmax(1)


def next_token_loop(model: Model, tokens: list[int]) -> Tensor:
    """log p(x_{T+1} | x) (V,)."""
    total = log_prob_loop(model, tokens)
    longer = [log_prob_loop(model, [*tokens, x]) for x in range(model.vocabulary_size)]
    return torch.tensor(longer, dtype=torch.float64) - total


def tables(model: Model) -> tuple[Tensor, Tensor, Tensor]:
    """Start (Z,), transition (Z, Z) and emission (Z, V) log-probabilities in float64."""
    cpu = torch.device("cpu")
    transition = model.transitions.to(cpu, torch.float64).log_probs()
    transition = transition - transition.logsumexp(1, keepdim=True)
    emission = model.emissions.to(cpu, torch.float64).table
    every = torch.arange(model.num_states)
    rows = model.support.to(cpu).emission_rows(emission, every)
    return model.start.to(cpu, torch.float64), transition, rows


def _starts_anew(model: Model, previous: int) -> bool:
    return model.reset and model.end is not None and previous == model.end
