"""Sums over the moves into and out of whole blocks of states, with two-level transitions.

    p(j | m, i) = softmax over the states j of block m of leaving_i · entering_mj

Logits of R states and m blocks are made, used and dropped: the caller says how many at once. Every
block is scaled by its own maximum, and sums that may have lost mass are computed again in log space
(see `log_matmul`). None of this has a gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bighmm.ops import memory
from bighmm.ops.log_matmul import SMALLEST_SUM, finite_or_zero


@torch.no_grad()
def enter_blocks(leaving: Tensor, entering: Tensor, log_weights: Tensor) -> Tensor:
    """log Σ_i exp(log_weights_bim) p(j | m, i) (B, m, K).

    leaving (R, H), entering (m, K, H), log_weights (B, R, m).
    """
    highest = log_weights.amax(1).T.unsqueeze(2)  # (m, B, 1)
    top = finite_or_zero(highest)
    weights = (log_weights.permute(2, 0, 1) - top).exp_()  # (m, B, R)
    mass = torch.bmm(weights, _within_blocks(leaving, entering))  # (m, B, K)
    low = _too_small(mass, highest)
    result = mass.log_().add_(top)
    for m, row, state in low:
        moves = (leaving @ entering[m].T).log_softmax(1).T  # (K, R)
        for some in memory.pieces(len(row), len(leaving), leaving.device):
            terms = moves[state[some]] + log_weights[row[some], :, m]
            result[m, row[some], state[some]] = terms.logsumexp(1)
    return result.transpose(0, 1)


@torch.no_grad()
def leave_blocks(leaving: Tensor, entering: Tensor, log_beta: Tensor) -> Tensor:
    """log Σ_j p(j | m, i) exp(log_beta_bmj) (B, R, m).

    leaving (R, H), entering (m, K, H), log_beta (B, m, K).
    """
    highest = log_beta.amax(2).T.unsqueeze(1)  # (m, 1, B)
    top = finite_or_zero(highest)
    weights = (log_beta.permute(1, 2, 0) - top).exp_()  # (m, K, B)
    mass = torch.bmm(_within_blocks(leaving, entering), weights)  # (m, R, B)
    low = _too_small(mass, highest)
    result = mass.log_().add_(top)
    for m, state, row in low:
        for some in memory.pieces(len(row), entering.shape[1], leaving.device):
            moves = (leaving[state[some]] @ entering[m].T).log_softmax(1)
            result[m, state[some], row[some]] = (moves + log_beta[row[some], m]).logsumexp(1)
    return result.permute(2, 1, 0)


def _within_blocks(leaving: Tensor, entering: Tensor) -> Tensor:
    """p(j | m, i) (m, R, K)."""
    logits = torch.bmm(leaving.expand(len(entering), *leaving.shape), entering.mT)
    return torch.softmax(logits, 2, out=logits)


def _too_small(mass: Tensor, highest: Tensor) -> list[tuple[int, Tensor, Tensor]]:
    """Sums of mass (m, …, …) that may have lost terms above zero: a block, and the two places."""
    low = mass < SMALLEST_SUM[mass.dtype]
    if not bool(low.any()):
        return []
    low &= highest > -torch.inf
    blocks = torch.nonzero(low.flatten(1).any(1)).squeeze(1).tolist()
    return [(m, *torch.nonzero(low[m], as_tuple=True)) for m in blocks]
