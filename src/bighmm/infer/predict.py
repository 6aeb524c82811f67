"""From a prefix to a distribution over the next state, and on to one over the next token."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bighmm.base.caching import cached
from bighmm.infer import engine
from bighmm.infer.dense import KEPT_ELEMENTS
from bighmm.infer.inputs import CHUNK_ELEMENTS, Carry
from bighmm.infer.numerics import SMALLEST_SUM, finite_or_zero
from bighmm.model.support import Blocked, Dense

if TYPE_CHECKING:
    from bighmm.hmm import HMM


def predict_states(hmm: HMM, carry: Carry) -> Tensor:
    """log p(next state | prefix) (B, Z); -inf after a prefix of probability zero."""
    log_states: Tensor = engine(hmm).predict_states(hmm, carry)
    return log_states.masked_fill(~carry.possible.unsqueeze(1), -torch.inf)


def token_log_probs(hmm: HMM, log_states: Tensor) -> Tensor:
    """log Σ_z p(z) p(x | z) (B, V) for log_states (B, Z)."""
    if isinstance(hmm.support, Dense):
        return _dense(hmm.emission, _emission_probs(hmm), log_states)
    if isinstance(hmm.support, Blocked):
        return _blocked(hmm.support, hmm.emission, log_states)
    every = torch.arange(hmm.support.vocabulary_size, device=log_states.device)
    rows = []
    for b in range(len(log_states)):
        of_token = hmm.support.gather(log_states[b], every)  # (V, K)
        rows.append((of_token + hmm.emission).logsumexp(1))
    return torch.stack(rows) if rows else log_states.new_zeros(0, len(every))


def some_token_log_probs(hmm: HMM, log_states: Tensor, tokens: Tensor) -> Tensor:
    """The same for a few tokens (N,) alone: (B, N)."""
    if isinstance(hmm.support, Dense):
        emission = hmm.emissions.of(tokens)
        return _dense(emission, emission.exp(), log_states)
    result = log_states.new_empty(len(log_states), len(tokens))
    of_state = log_states.T.contiguous()
    step = max(1, CHUNK_ELEMENTS // (hmm.support.alive * max(1, len(log_states))))
    for part in torch.arange(len(tokens), device=tokens.device).split(step):
        some = tokens[part]
        joint = hmm.support.gather(of_state, some) + hmm.emissions.of(some).unsqueeze(2)
        result[:, part] = joint.logsumexp(1).T
    return result


def _emission_probs(hmm: HMM) -> Tensor:
    """p(x | z) (V, Z), kept where it is small and no gradient is due."""
    table = hmm.emission
    if table.requires_grad or table.numel() > KEPT_ELEMENTS:
        return table.exp()
    return cached(hmm.emissions, "_probs", (table,), table.exp)


def _dense(emission: Tensor, probs: Tensor, log_states: Tensor) -> Tensor:
    """A product in probability space; the few sums that are too small again in log space."""
    top = finite_or_zero(log_states.amax(1, keepdim=True))
    mass = (log_states - top).exp() @ probs.T
    result = mass.log() + top
    low = torch.nonzero(mass < SMALLEST_SUM[mass.dtype])
    for part in low.split(max(1, CHUNK_ELEMENTS // emission.shape[1])):
        rows, tokens = part.unbind(1)
        result[rows, tokens] = (log_states[rows] + emission[tokens]).logsumexp(1)
    return result


def _blocked(support: Blocked, emission: Tensor, log_states: Tensor) -> Tensor:
    """A product per block, each scaled by its own maximum; the rest as in `_dense`."""
    by_block = support.partition.by_block
    tokens, first = by_block.tokens.long(), by_block.first.tolist()
    blocks = log_states.reshape(-1, support.partition.num_blocks, support.alive)  # (B, M, K)
    top = finite_or_zero(blocks.amax(2, keepdim=True))
    weights = (blocks - top).exp()
    emitted = emission.index_select(0, tokens).exp_()
    parts = [weights[:, m] @ emitted[begin:end].T for m, (begin, end) in enumerate(pairwise(first))]
    mass = log_states.new_empty(len(log_states), len(tokens))
    mass[:, tokens] = torch.cat(parts, dim=1)
    block_of = support.partition.block_of
    result = mass.log() + top.squeeze(2).index_select(1, block_of)
    alive = (blocks.amax(2) > -torch.inf).index_select(1, block_of)
    low = torch.nonzero((mass < SMALLEST_SUM[mass.dtype]) & alive)
    for part in low.split(max(1, CHUNK_ELEMENTS // support.alive)):
        rows, some = part.unbind(1)
        result[rows, some] = (blocks[rows, block_of[some]] + emission[some]).logsumexp(1)
    return result
