"""Answers about sequences, each a function of an HMM and rows."""

from __future__ import annotations

import numpy as np
import torch

from bighmm.hmm import HMM
from bighmm.sequences.rows import Rows


def log_probs(hmm: HMM, rows: Rows) -> np.ndarray:
    """log p (N,) of each sequence; 0 for an empty one."""
    found = np.zeros(len(rows.rows))
    for chosen, ids, sizes in rows.batches():
        found[chosen] = hmm.log_prob(ids, sizes).numpy()
    return found


def best_paths(hmm: HMM, rows: Rows) -> tuple[np.ndarray, list[np.ndarray]]:
    """log p(x, z) (N,) of each likeliest path, and the paths; -1 where there is none."""
    total, found = np.zeros(len(rows.rows)), [np.empty(0, np.int64)] * len(rows.rows)
    for chosen, ids, sizes in rows.batches():
        best = hmm.viterbi(ids, sizes)
        total[chosen] = best.log_prob.numpy()
        for number, path, size in zip(chosen, best.states.numpy(), sizes.tolist(), strict=True):
            found[number] = path[:size]
    return total, found


def marginals(hmm: HMM, rows: Rows) -> tuple[np.ndarray, list[np.ndarray]]:
    """log p(x) (N,), and p(state | sequence) (T, Z) of each; 0 if its probability is zero."""
    states_in_all = hmm.num_states
    total, found = np.zeros(len(rows.rows)), [np.empty((0, states_in_all))] * len(rows.rows)
    for chosen, ids, sizes in rows.batches(cost_per_position=states_in_all):
        posterior = hmm.posterior(ids, sizes)
        every = posterior.marginals
        if not hmm.support.is_dense:
            # Where there is no state the marginal is 0, and adds nothing to state 0.
            states = posterior.states.clamp(min=0)
            every = every.new_zeros(*ids.shape, states_in_all)
            every.scatter_add_(2, states, posterior.marginals)
        total[chosen] = posterior.log_prob.numpy()
        for number, probs, size in zip(chosen, every.numpy(), sizes.tolist(), strict=True):
            found[number] = probs[:size]
    return total, found


def likeliest_states(hmm: HMM, rows: Rows) -> tuple[np.ndarray, list[np.ndarray]]:
    """The likeliest state at each position by itself, with log p(x, z) (N,) of these together.

    That is -inf where the model cannot go from one to the next, and -1 are the states of a
    sequence of probability zero.
    """
    scores, probs = marginals(hmm, rows)
    possible = scores > -np.inf
    found = [
        p.argmax(1) if ok else np.full(len(p), -1) for p, ok in zip(probs, possible, strict=True)
    ]
    total = np.where(possible, 0.0, -np.inf)
    for chosen, ids, sizes in rows.batches():
        some = [torch.from_numpy(found[number]) for number in chosen]
        states = torch.nn.utils.rnn.pad_sequence(some, batch_first=True)
        total[chosen] += hmm.joint_log_prob(ids, states, sizes).numpy()
    return total, found


def next_symbols(hmm: HMM, rows: Rows) -> np.ndarray:
    """p (N, V) of the symbol that follows each sequence; 0 after one of probability zero."""
    found = np.zeros((len(rows.rows), rows.size))
    for chosen, ids, sizes in rows.batches():
        found[chosen] = hmm.next_token(ids, sizes)[:, : rows.size].exp().numpy()
    sums = found.sum(1, keepdims=True)
    return np.divide(found, sums, out=found, where=sums > 0)
