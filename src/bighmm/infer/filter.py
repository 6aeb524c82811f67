"""Filtering: log p of windows of tokens, and the state after them.

Where a token leaves only K of the Z states alive, a sequence costs O(T K²): between two tokens lies
a tile of K × K transitions (`potentials`), and `ops.chain` sums over the chain of tiles. Where
every state may emit every token, a step is a product with the whole matrix (`dense`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from bighmm.base.caching import needs_gradient
from bighmm.infer import dense, loops
from bighmm.infer.potentials import emitted, potentials
from bighmm.infer.sequences import (
    Carry,
    Sequences,
    batches_by_length,
    cost_per_position,
    windows,
)
from bighmm.model.model import Model
from bighmm.ops.chain import chain_log_sum
from bighmm.ops.chain import plain as chain
from bighmm.ops.impl import use_triton
from bighmm.ops.table_chain import compiled
from bighmm.ops.windows import Windows


def log_prob(model: Model, sequences: Sequences, impl: str = "auto") -> Tensor:
    """log p(x_1 … x_T) (B,), differentiable; 0 for an empty sequence.

    Without gradients the work is cut into pieces that fit in memory; with gradients all of it is
    one piece.
    """
    if needs_gradient(model.operands):
        return advance(model, sequences, Carry.at_start(model, len(sequences.ids)), impl)[0]
    looped = loops.prepare(model, sequences, impl)
    if looped is not None:
        return compiled().filter_rows(looped.rows, looped.tables)[0]
    result = model.start.new_zeros(len(sequences.ids))
    for rows in batches_by_length(sequences.lengths, cost_per_position(model)):
        result[rows], _ = run_filter(model, sequences.rows(rows), impl)
    return result


@torch.no_grad()
def run_filter(model: Model, sequences: Sequences, impl: str = "auto") -> tuple[Tensor, Carry]:
    """log p (B,) and the state at the end of each row, in windows that fit in memory."""
    batch, time = sequences.ids.shape
    carry = Carry.at_start(model, batch)
    total = model.start.new_zeros(batch)
    for first, last in windows(model, batch, time):
        gained, carry = advance(model, sequences.window(first, last), carry, impl)
        total += gained
    return total, carry


@torch.no_grad()
def token_log_probs(model: Model, sequences: Sequences) -> Tensor:
    """log p(x_t | x_1 … x_{t-1}) (B, T), 0 in the padding; -inf from an impossible token on."""
    batch, time = sequences.ids.shape
    found, carry = model.start.new_zeros(batch, time), Carry.at_start(model, batch)
    step = dense.by_token if model.support.is_dense else _by_token
    for first, last in windows(model, batch, time):
        window = sequences.window(first, last)
        gained, carry = step(model, window, carry)
        lost = (~(gained > -torch.inf)).cumsum(1) > 0
        found[:, first:last] = gained.masked_fill(lost, -torch.inf).where(window.inside(), 0.0)
    return found


def _by_token(model: Model, window: Sequences, carry: Carry) -> tuple[Tensor, Carry]:
    """log p(x_t | what is before it) (B, T), NaN after an impossible token; the state after all."""
    log_alpha, scale = chain.sweep_forward(*potentials(model, window, carry))
    gained = scale[:, 1:] + log_alpha.logsumexp(2).diff(dim=1)
    return gained, carry.then(model, window, log_alpha[:, -1])


def advance(
    model: Model, window: Sequences, carry: Carry, impl: str = "auto"
) -> tuple[Tensor, Carry]:
    """log p(window | what came before) (B,), differentiable, and the state after the window.

    impl: as in `ops`; "loop" and "tree" name the torch forms of `ops.chain`.
    """
    if model.support.is_dense:
        assert window.hidden is None, "words are hidden in models with blocks or lists of states"
        return dense.advance(model, window, carry, impl)
    kernels = use_triton(model.start, impl)
    if window.ids.numel() and (kernels or (impl == "auto" and not model.start.is_cuda)):
        found = _fused(model, window, carry, kernels)
        if found is not None:
            return found
    log_sum, log_alpha = chain_log_sum(*potentials(model, window, carry), impl)
    return log_sum, carry.then(model, window, log_alpha.detach())


def can_be_captured(model: Model) -> bool:
    """Whether `advance` with this model asks the host for no number, so that a graph can hold it.

    The torch forms look at their numbers; kernels do not. They must be for all blocks of words, or
    for the dense models that they can do.
    """
    if not model.support.fixed_dropout or not use_triton(model.start):
        return False
    if model.support.is_dense:
        return dense.kernel_fits(model)
    return model.transitions.capturable and model.start.dtype == torch.float32


def _fused(
    model: Model, window: Sequences, carry: Carry, kernels: bool
) -> tuple[Tensor, Carry] | None:
    """The same as the transitions' family does it in one piece, where it does so for blocks."""
    blocks = model.support.partition
    if blocks is None or (kernels and model.start.dtype != torch.float32):
        return None
    chain = model.transitions.blocked_chain(model.support, kernels)
    if chain is None:
        return None
    given = Windows(
        window.ids,
        window.fresh,
        window.lengths,
        blocks.block_of,
        carry.log_alpha,
        carry.tokens,
        carry.fresh,
    )
    found = chain(given, model.start, emitted(model, window))
    if found is None:
        return None
    log_sum, log_alpha = found
    return log_sum, carry.then(model, window, log_alpha)
