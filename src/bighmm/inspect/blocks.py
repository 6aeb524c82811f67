"""Moves between the blocks of a model, and between the states of two blocks.

A state z counts with the weight w_z = share_z (1 - p(end mark | z)): how much of a text it emits,
and then goes on. Without shares of a text they are all equal.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bighmm.base.interrupting import report
from bighmm.hmm import HMM
from bighmm.inspect.states import end_probs
from bighmm.ops.partition import Partition


class PairOfBlocks(NamedTuple):
    """Moves from the states of one block to those of another, K each."""

    weights: Tensor  # (K,) p(z | z is in the first block and the text goes on)
    prob: Tensor  # () p(the next state is in the second block | the same)
    reached: Tensor  # (K,) p(z' | the same, and z' is in the second block)
    log_probs: Tensor  # (K, K) log p(z' | z)


def blocks_of(hmm: HMM) -> Partition:
    """The blocks of a model; ValueError if its states are not in blocks."""
    if hmm.support.partition is None:
        raise ValueError("the states of this model are not in blocks")
    return hmm.support.partition


@torch.no_grad()
def block_moves(hmm: HMM, shares: Tensor | None = None) -> Tensor:
    """p(the next state is in block n | a state of block m, and the text goes on) (M, M):

        Σ_{z in m} w_z p(n | z) / Σ_{z in m} w_z

    NaN in the rows of blocks without weight. Where the family of transitions knows probabilities of
    blocks they are used; otherwise all pairs of states are summed, block by block, which tells how
    many blocks it has done (`base.interrupting`).
    """
    blocks = blocks_of(hmm)
    log_weights = _log_weights(hmm, blocks, shares)  # (M, K)
    first = blocks.by_block.first.long()
    some = torch.nonzero((first.diff() > 0) & ~log_weights.isnan().any(1)).squeeze(1)
    tokens = blocks.by_block.tokens.long()[first[some]]  # one of each block
    result = log_weights.new_full((blocks.num_blocks, blocks.num_blocks), torch.nan)
    found = hmm.transitions.next_blocks(hmm.support, tokens, log_weights[some])
    if found is not None:
        result[some] = found.exp()
        return result
    for number, block in enumerate(some.tolist()):
        one = slice(number, number + 1)
        moved = hmm.transitions.next_states(hmm.support, tokens[one], log_weights[some][one])
        result[block] = moved.view(blocks.num_blocks, -1).logsumexp(1).exp()
        report(number + 1, len(some))
    return result


@torch.no_grad()
def between_blocks(hmm: HMM, before: int, after: int, shares: Tensor | None = None) -> PairOfBlocks:
    """The moves from the states of one block to those of another."""
    blocks = blocks_of(hmm)
    for block in (before, after):
        check_block(hmm, block)
    size = hmm.num_states // blocks.num_blocks
    rows, columns = (slice(block * size, (block + 1) * size) for block in (before, after))
    log_probs = hmm.transitions.log_probs(rows, columns)
    log_weights = _log_weights(hmm, blocks, shares)[before]
    joint = (log_weights.unsqueeze(1) + log_probs).logsumexp(0)
    prob = joint.logsumexp(0)
    return PairOfBlocks(log_weights.exp(), prob.exp(), (joint - prob).exp(), log_probs)


def check_block(hmm: HMM, block: int) -> None:
    """Raises ValueError if there is no such block."""
    last = blocks_of(hmm).num_blocks - 1
    if not 0 <= block <= last:
        raise ValueError(f"there is no block {block}: blocks go from 0 to {last}")


def _log_weights(hmm: HMM, blocks: Partition, shares: Tensor | None) -> Tensor:
    """log w_z (M, K), normalised within each block; NaN in a block without weight."""
    weights = torch.ones_like(hmm.start) if shares is None else shares.to(hmm.start)
    if hmm.reset:
        weights = weights * (1 - end_probs(hmm)).clamp(min=0)
    by_block = weights.view(blocks.num_blocks, -1)
    return (by_block / by_block.sum(1, keepdim=True)).log()
