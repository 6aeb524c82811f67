"""Questions about the states of an HMM: their words, their neighbours, their share of a text.

Rows of the transition matrix are computed a few at a time, so nothing of size Z × Z is stored.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bighmm.base.arrays import as_tensor
from bighmm.data.batches import padded_rows
from bighmm.data.corpus import sentence_bounds
from bighmm.hmm import HMM
from bighmm.infer.sequences import batches_by_length
from bighmm.ops import memory
from bighmm.ops.log_matmul import finite_or_zero


class Likeliest(NamedTuple):
    """The k likeliest of each of N rows."""

    ids: Tensor  # (N, k) the likeliest first; -1 where the probability is zero
    probs: Tensor  # (N, k)


@torch.no_grad()
def likely_words(hmm: HMM, states: Tensor | list[int], k: int) -> Likeliest:
    """The k tokens x with the highest p(x | z), for each of the states z (N,)."""
    states = _checked(hmm, states, k)
    rows = (
        hmm.support.emission_rows(hmm.emission, part)
        for part in states.split(memory.at_once(hmm.vocabulary_size, states.device))
    )
    return _highest(rows, min(k, hmm.vocabulary_size))


@torch.no_grad()
def next_states(hmm: HMM, states: Tensor | list[int], k: int) -> Likeliest:
    """The k states j with the highest p(j | z), for each of the states z (N,).

    p(j | z) is that after a word; after an end mark a text starts anew.
    """
    states = _checked(hmm, states, k)
    rows = (
        hmm.transitions.log_probs(part)
        for part in states.split(memory.at_once(hmm.num_states, states.device))
    )
    return _highest(rows, min(k, hmm.num_states))


@torch.no_grad()
def previous_states(
    hmm: HMM, states: Tensor | list[int], k: int, shares: Tensor | None = None
) -> Likeliest:
    """The k likeliest predecessors i of each of the states z (N,):

        p(i | z) = w_i p(z | i) / Σ_j w_j p(z | j),   w_i = share_i (1 - p(end mark | i))

    with the states' shares (Z,) of a text, or with equal ones. The factor 1 - p(end mark | i) is
    there because a text starts anew after the end mark. Columns of the transition matrix are
    computed some rows at a time.
    """
    states = _checked(hmm, states, k)
    k = min(k, hmm.num_states)
    if shares is None:
        shares = torch.ones(hmm.num_states)
    log_shares = (shares.to(hmm.start) * _going_on(hmm)).log()
    best = hmm.start.new_full((k, len(states)), -torch.inf)
    ids = torch.zeros_like(best, dtype=torch.long)
    total = hmm.start.new_full((len(states),), -torch.inf)
    every = torch.arange(hmm.num_states, device=hmm.start.device)
    for rows in memory.pieces(hmm.num_states, len(states), states.device):
        part = every[rows]
        joint = hmm.transitions.log_probs(rows, states) + log_shares[rows].unsqueeze(1)
        total = torch.logaddexp(total, joint.logsumexp(0))
        best, place = torch.cat([best, joint]).topk(k, dim=0)
        ids = torch.cat([ids, part.unsqueeze(1).expand_as(joint)]).gather(0, place)
    probs = (best - finite_or_zero(total)).exp().T
    return Likeliest(ids.T.masked_fill(probs == 0, -1), probs)


def end_probs(hmm: HMM) -> Tensor:
    """p(end mark | z) (Z,); 0 throughout where there is no end mark."""
    return token_probs(hmm, hmm.end)


@torch.no_grad()
def token_probs(hmm: HMM, token: int | None) -> Tensor:
    """p(token | z) (Z,); 0 throughout without a token."""
    result = torch.zeros_like(hmm.start)
    if token is not None:
        ids = torch.tensor([token], device=hmm.start.device)
        states, log_probs = hmm.support.states(ids)[0], hmm.emissions.of(ids)[0]
        some = states >= 0
        result[states[some]] = log_probs[some].exp()
    return result


def first_states(hmm: HMM, k: int) -> Likeliest:
    """The k likeliest states of the first word of a text, as one row."""
    return _highest(iter([hmm.start.unsqueeze(0)]), min(k, hmm.num_states))


def _going_on(hmm: HMM) -> Tensor:
    """p(z does not emit the end mark) (Z,); 1 throughout where the state is carried over it."""
    ended = end_probs(hmm) if hmm.reset else torch.zeros_like(hmm.start)
    return (1 - ended).clamp(min=0)


@torch.no_grad()
def state_shares(hmm: HMM, tokens: np.ndarray, documents: np.ndarray | None = None) -> Tensor:
    """The share (Z,) of a stream of token ids that each state is expected to emit.

    Sentences are independent; each runs to its end mark or to the next of the beginnings of
    `documents`. Sentences of probability zero do not count; if there are no others, all shares
    are 0.
    """
    tokens = np.asarray(tokens)
    if tokens.ndim != 1 or len(tokens) == 0:
        raise ValueError(f"shares of a text need at least one token, not shape {tokens.shape}")
    bounds = sentence_bounds(tokens, -1 if hmm.end is None else hmm.end, documents)
    lengths = torch.from_numpy(np.diff(bounds))
    alone = dataclasses.replace(hmm, reset=True)
    expected = torch.zeros(hmm.num_states, dtype=torch.float64, device=hmm.start.device)
    for rows in batches_by_length(lengths, hmm.support.states_per_token):
        ids = torch.from_numpy(padded_rows(tokens, bounds, rows.numpy()))
        found = alone.posterior(ids, lengths[rows])
        states = found.states.clamp(min=0).view(-1)  # the marginals of padding (-1) are 0
        expected.index_add_(0, states, found.marginals.double().view(-1))
    return expected / expected.sum().clamp(min=torch.finfo(torch.float64).tiny)


def _checked(hmm: HMM, states: Tensor | list[int], k: int) -> Tensor:
    states = as_tensor(states).to(hmm.start.device, torch.long)
    if k < 1:
        raise ValueError(f"at least one must be asked for, not {k}")
    if states.dim() != 1 or len(states) == 0:
        raise ValueError(f"states are a list of numbers, at least one, not {states.tolist()}")
    check_states(hmm, states.tolist())
    return states


def check_states(hmm: HMM, states: list[int]) -> None:
    """Raises ValueError for a number that no state has."""
    for state in states:
        if not 0 <= state < hmm.num_states:
            raise ValueError(f"there is no state {state}: states go from 0 to {hmm.num_states - 1}")


def _highest(log_rows: Iterator[Tensor], k: int) -> Likeliest:
    """The k highest of every row of log-probabilities, which are given chunk by chunk."""
    best = [rows.topk(k) for rows in log_rows]
    probs = torch.cat([part.values for part in best]).exp()
    return Likeliest(torch.cat([part.indices for part in best]).masked_fill(probs == 0, -1), probs)
