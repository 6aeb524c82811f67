"""Numbers by which models are compared, and where their states end up in the long run."""

from __future__ import annotations

import math

import numpy as np
import torch

from bighmm.hmm import HMM

SOLVED = 512  # states up to which equations are solved; the time grows with their third power
MOST_STEPS, SETTLED = 2_000, 1e-12


def free_parameters(hmm: HMM, letters: str = "ste") -> int:
    """How many probabilities of the tables of `letters` can be chosen freely.

    Of a distribution over n possible outcomes these are n - 1; what has probability zero is not
    possible, as Baum-Welch leaves it so.
    """
    free = 0
    if "s" in letters:
        free += int((hmm.start > -torch.inf).sum()) - 1
    if "t" in letters:
        free += int((hmm.transitions.log_probs() > -torch.inf).sum()) - hmm.num_states
    if "e" in letters:
        states = hmm.support.states(torch.arange(hmm.vocabulary_size))
        free += int(((hmm.emission > -torch.inf) & (states >= 0)).sum()) - hmm.num_states
    return free


def aic(log_prob: float, free: int) -> float:
    """Akaike's criterion, 2 k - 2 log p; the lower the better."""
    return 2.0 * free - 2.0 * log_prob


def bic(log_prob: float, free: int, observed: int) -> float:
    """The Bayesian criterion, k log n - 2 log p; the lower the better."""
    return free * math.log(max(1, observed)) - 2.0 * log_prob


@torch.no_grad()
def stationary(hmm: HMM) -> np.ndarray:
    """The distribution (Z,) that a step does not change, π A = π.

    Where there are several, as states fall into parts that are never left, one of them.
    """
    found = _solved(hmm) if hmm.num_states <= SOLVED else _iterated(hmm)
    return found / found.sum()


def _solved(hmm: HMM) -> np.ndarray:
    """From the equations π A = π and Σ π = 1."""
    moves = hmm.transitions.log_probs().double().exp().numpy()
    size = len(moves)
    equations = np.vstack([moves.T - np.eye(size), np.ones((1, size))])
    wanted = np.append(np.zeros(size), 1.0)
    return np.linalg.lstsq(equations, wanted, rcond=None)[0].clip(min=0)


def _iterated(hmm: HMM) -> np.ndarray:
    """By steps, each of which stays with probability one half, so that no cycle goes on."""
    move, size = hmm.transitions.product(), hmm.num_states
    share = hmm.start.new_full((1, size), 1 / size)
    for _ in range(MOST_STEPS):
        after = (share + move.ahead(share.log()).exp()) / 2
        change, share = float((after - share).abs().sum()), after
        if change < SETTLED:
            break
    return share[0].numpy()
