"""From a prefix to a distribution over the next state, and on to one over the next token."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bighmm.infer.sequences import Carry
from bighmm.model.model import Model
from bighmm.ops.partition import Partition

FIRST = 8  # blocks that are looked into at first, then twice as many as before
ROUNDING = 1e-4  # of log-probabilities that are compared


class BestNext(NamedTuple):
    tokens: Tensor  # (B, k), the likeliest first
    log_prob: Tensor  # (B, k) log p(token | prefix), -inf for what cannot follow


def next_token(model: Model, carry: Carry) -> Tensor:
    """log p(next token | prefix) (B, V); -inf after a prefix of probability zero."""
    return model.support.token_log_probs(model.emissions, predict_states(model, carry))


def best_next_tokens(model: Model, carry: Carry, k: int) -> BestNext:
    """The k likeliest next tokens of each row, exactly; all tokens where there are fewer.

    Where the family of transitions gives p(block | prefix) at little cost, blocks are looked into
    from the likeliest on. No token is likelier than its block, so the search ends where the next
    block is less likely than the k-th token that was found.
    """
    k = min(k, model.vocabulary_size)
    blocks, log_blocks = model.support.partition, None
    if blocks is not None:
        log_blocks = model.transitions.next_blocks(model.support, carry.tokens, carry.log_alpha)
    if blocks is None or log_blocks is None:
        return BestNext(*_highest(next_token(model, carry), k))
    tokens = carry.tokens.new_empty(len(carry.tokens), k)
    log_prob = carry.log_alpha.new_empty(tokens.shape)
    easy = carry.fresh | ~carry.possible
    for row in torch.nonzero(~easy).squeeze(1).tolist():
        one = carry.rows(torch.tensor([row], device=tokens.device))
        tokens[row], log_prob[row] = _search(model, blocks, one, log_blocks[row], k)
    if bool(easy.any()):
        tokens[easy], log_prob[easy] = _highest(next_token(model, carry.rows(easy)), k)
    return BestNext(tokens, log_prob)


def predict_states(model: Model, carry: Carry) -> Tensor:
    """log p(next state | prefix) (B, Z); -inf after a prefix of probability zero."""
    if model.support.is_dense:
        moved = model.transitions.product().ahead(carry.log_alpha)
    elif bool(carry.fresh.all()):
        moved = model.start.expand(len(carry.fresh), -1)
    else:
        moved = model.transitions.next_states(model.support, carry.tokens, carry.log_alpha)
    log_states = torch.where(carry.fresh.unsqueeze(1), model.start, moved)
    return log_states.masked_fill(~carry.possible.unsqueeze(1), -torch.inf)


def _search(
    model: Model, blocks: Partition, carry: Carry, log_blocks: Tensor, k: int
) -> tuple[Tensor, Tensor]:
    """The k likeliest tokens (k,) of a carry with one row, and their log-probabilities."""
    bounds, order = log_blocks.sort(descending=True)
    tokens, log_prob = carry.tokens.new_empty(0), log_blocks.new_empty(0)
    first, count = 0, FIRST
    while first < len(order):
        if len(tokens) == k and bool(log_prob[-1] >= bounds[first] + ROUNDING):
            break
        some = order[first : first + count]
        found, of_found = _words_of(model, blocks, carry, some)
        tokens, log_prob = torch.cat([tokens, found]), torch.cat([log_prob, of_found])
        best = log_prob.topk(min(k, len(log_prob)))
        tokens, log_prob = tokens[best.indices], best.values
        first, count = first + count, 2 * count
    return tokens, log_prob


def _words_of(model: Model, blocks: Partition, carry: Carry, some: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens (W,) of some blocks, and log p(token | prefix) (W,)."""
    moved = model.transitions.next_states(model.support, carry.tokens, carry.log_alpha, some)
    by_block = blocks.by_block
    sizes = by_block.first.diff().long()[some]
    which = torch.repeat_interleave(torch.arange(len(some), device=some.device), sizes)
    within = torch.arange(len(which), device=some.device) - (sizes.cumsum(0) - sizes)[which]
    tokens = by_block.tokens.long()[by_block.first.long()[some][which] + within]
    log_states = moved.view(len(some), -1).index_select(0, which)  # (W, K)
    return tokens, (log_states + model.emissions.of(tokens)).logsumexp(1)


def _highest(log_probs: Tensor, k: int) -> tuple[Tensor, Tensor]:
    best = log_probs.topk(k)
    return best.indices, best.values
