"""From a prefix to a distribution over the next state, and on to one over the next token."""

from __future__ import annotations

import torch
from torch import Tensor

from bighmm.infer.sequences import Carry
from bighmm.model.model import Model
from bighmm.ops import memory


def next_token(model: Model, carry: Carry) -> Tensor:
    """log p(next token | prefix) (B, V); -inf after a prefix of probability zero."""
    return model.support.token_log_probs(model.emissions, predict_states(model, carry))


def predict_states(model: Model, carry: Carry) -> Tensor:
    """log p(next state | prefix) (B, Z); -inf after a prefix of probability zero."""
    if model.support.is_dense:
        moved = model.transitions.product().ahead(carry.log_alpha)
    else:
        moved = _from_few_states(model, carry)
    log_states = torch.where(carry.fresh.unsqueeze(1), model.start, moved)
    return log_states.masked_fill(~carry.possible.unsqueeze(1), -torch.inf)


def _from_few_states(model: Model, carry: Carry) -> Tensor:
    """log Σ_k p(z_k | prefix) p(j | z_k) (B, Z), summed over the K states of the last token."""
    states = model.support.valid_states(carry.tokens)
    (batch, size), num_states = states.shape, model.num_states
    result = model.start.new_empty(batch, num_states)
    for part in memory.pieces(batch, size * num_states, model.start.device):
        moves = model.transitions.log_probs(states[part].reshape(-1))
        weighted = moves.view(-1, size, num_states).add_(carry.log_alpha[part].unsqueeze(2))
        result[part] = weighted.logsumexp(1)
    return result
