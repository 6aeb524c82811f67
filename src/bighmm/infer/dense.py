"""Filtering when every state may emit every token: a step is a product with the whole matrix.

On a GPU `ops.dense_chain` does it with kernels; small models on a CPU, without gradients, are done
by the compiled loops of `ops.table_chain`. Where kernels may have lost mass, and everywhere else,
filtered states are kept in log space and a step is the product of the transitions' family.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bighmm.base.caching import needs_gradient
from bighmm.infer import loops
from bighmm.infer.sequences import Carry, Sequences
from bighmm.model.model import Model
from bighmm.model.transitions import Transitions
from bighmm.ops import memory
from bighmm.ops.dense_chain import LARGEST, SMALLEST_PROB, Windows, dense_chain, plain
from bighmm.ops.impl import use_triton
from bighmm.ops.log_matmul import finite_or_zero
from bighmm.ops.matmul import being_captured
from bighmm.ops.table_chain import compiled

LARGEST_LOG = 60.0  # exp of this still leaves room for sums in float32


def advance(
    model: Model, window: Sequences, carry: Carry, impl: str = "auto"
) -> tuple[Tensor, Carry]:
    """log p(window | what came before) (B,), differentiable, and the state after the window."""
    single = window.ids.shape[1] == 1 and impl == "auto" and model.transitions.caches_matrix
    kernels = not single and use_triton(model.start, impl) and kernel_fits(model)
    if not kernels or window.ids.numel() == 0:
        return _advance(model, window, carry, impl)
    log_prob, after, lost = _with_kernels(model, window, carry)
    if lost is None or not bool(lost.any()):
        return log_prob, after
    if log_prob.requires_grad:
        return _advance(model, window, carry)
    rows = torch.nonzero(lost).squeeze(1)
    again, ended = _advance(model, window.rows(rows), carry.rows(rows))
    log_alpha = after.log_alpha.index_copy(0, rows, ended.log_alpha)
    return log_prob.index_copy(0, rows, again), replace(after, log_alpha=log_alpha)


def by_token(model: Model, window: Sequences, carry: Carry) -> tuple[Tensor, Carry]:
    """log p(x_t | what is before it) (B, T), and the state after the window."""
    given, move = windows_of(window, carry), model.transitions.product()
    log_emission = emitted(model.emission, window.ids)
    log_alpha, gained = plain.forward(move.ahead, model.start, log_emission, given)
    return gained, carry.then(model, window, _last(log_alpha, given))


def kernel_fits(model: Model) -> bool:
    """Whether the kernels of `ops.dense_chain` can do this model."""
    return (
        model.support.is_dense
        and model.start.dtype == torch.float32
        and model.num_states <= LARGEST
        and model.transitions.dense_pass() is not None
        and model.emissions.dense_pass() is not None
    )


def windows_of(window: Sequences, carry: Carry) -> Windows:
    """A window and its carry as `ops.dense_chain` takes them."""
    return Windows(window.ids, window.fresh, window.lengths, carry.log_alpha, carry.fresh)


def emitted(emission: Tensor, ids: Tensor) -> Tensor:
    """log p(x_t | z_t) (B, T, Z) for ids (B, T), from emission (V, Z)."""
    return emission.index_select(0, ids.reshape(-1)).view(*ids.shape, emission.shape[1])


def _with_kernels(
    model: Model, window: Sequences, carry: Carry
) -> tuple[Tensor, Carry, Tensor | None]:
    """Also which rows (B,) may have lost mass; None while a graph is captured, which cannot ask."""
    moves, words = model.transitions.dense_pass(), model.emissions.dense_pass()
    assert moves is not None and words is not None, "kernel_fits was asked before"
    log_prob, log_alpha, relative = dense_chain(
        windows_of(window, carry),
        model.start,
        (moves, model.transitions.operands),
        (words, model.emissions.operands),
    )
    lost = None if being_captured(log_prob) else relative < SMALLEST_PROB
    return log_prob, carry.then(model, window, log_alpha), lost


def _advance(
    model: Model, window: Sequences, carry: Carry, impl: str = "torch"
) -> tuple[Tensor, Carry]:
    gradient = needs_gradient(model.operands)
    looped = None if gradient else loops.prepare(model, window, impl, carry)
    if looped is not None:
        log_prob, ended = compiled().filter_rows(
            looped.rows, looped.tables, looped.carried, ends=True
        )
        return log_prob, carry.then(model, window, torch.from_numpy(ended))
    given, transitions = windows_of(window, carry), model.transitions
    if gradient:
        log_prob, log_alpha = _DenseLogSum.apply(
            given, transitions, model.start, model.emission, *transitions.operands
        )
        return log_prob, carry.then(model, window, log_alpha)
    gained, after = by_token(model, window, carry)
    return gained.sum(1), after


class _DenseLogSum(torch.autograd.Function):
    """log p of a batch; the backward pass gives expected counts.

    With source_t(i) = p(z_{t-1} = i | x_<t) and target_t(j) = p(x_t … x_T | z_t = j) divided by
    p(x_t … x_T | x_<t), the expected moves are N_ij = p(j | i) Σ_t source_t(i) target_t(j): one
    large product over all positions at the end, which the transitions' family turns into gradients.
    """

    @staticmethod
    def forward(
        ctx: Any,
        windows: Windows,
        transitions: Transitions,
        start: Tensor,
        emission: Tensor,
        *operands: Tensor,
    ) -> tuple[Tensor, Tensor]:
        transitions = transitions.with_operands(*operands)  # as autograd has unwrapped them
        move = transitions.product()
        log_emission = emitted(emission, windows.ids)
        log_alpha, gained = plain.forward(move.ahead, start, log_emission, windows)
        ctx.windows, ctx.transitions, ctx.move = windows, transitions, move
        ctx.save_for_backward(emission, log_alpha, gained)
        at_end = _last(log_alpha, windows)
        ctx.mark_non_differentiable(at_end)
        return gained.sum(1), at_end

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> tuple[Any, ...]:
        emission, log_alpha, gained = ctx.saved_tensors
        windows, transitions = ctx.windows, ctx.transitions
        size = log_alpha.shape[2]
        log_emission = emitted(emission, windows.ids)
        log_beta = plain.backward(ctx.move.back, log_emission, windows)
        weight = torch.where(gained.sum(1) > -torch.inf, grad, 0.0)
        weight = weight.unsqueeze(1) * windows.inside()  # (B, T)

        joint = log_alpha + log_beta
        scale = finite_or_zero(joint.logsumexp(2))
        marginals = (joint - scale.unsqueeze(2)).exp() * weight.unsqueeze(2)
        grad_emission = torch.zeros_like(emission)
        grad_emission.index_add_(0, windows.ids.reshape(-1), marginals.view(-1, size))
        fresh = windows.drawn_anew()
        grad_start = (marginals * fresh.unsqueeze(2)).view(-1, size).sum(0)

        used = (weight != 0) & ~fresh  # positions entered through a transition
        before = torch.cat([windows.carried.unsqueeze(1), log_alpha], dim=1)[:, :-1]
        log_target = (log_emission + log_beta)[used]
        log_target -= (finite_or_zero(gained) + scale)[used].unsqueeze(1)
        grads = tuple(torch.zeros_like(x) for x in transitions.operands)
        moves = _expected_moves(transitions, before[used], log_target, weight[used])
        for rows, counts, probs in moves:
            transitions.pull_back(rows, counts, probs, grads)
        return None, None, grad_start, grad_emission, *grads


def _expected_moves(
    transitions: Transitions, log_source: Tensor, log_target: Tensor, weight: Tensor
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Σ_n weight_n source_n(i) p(j | i) target_n(j) and p(j | i), in chunks of rows i: (R, Z).

    Where a target is too large for the type (its state was all but unreachable), that position is
    summed in log space.
    """
    extreme = log_target.amax(1) > LARGEST_LOG
    places = torch.nonzero(extreme).squeeze(1).tolist()
    sources = log_source.exp()
    targets = log_target.masked_fill(extreme.unsqueeze(1), -torch.inf).exp_()
    targets *= weight.unsqueeze(1)
    size = transitions.num_states
    for rows in memory.pieces(size, size, log_source.device):
        log_probs = transitions.log_probs(rows)
        probs = log_probs.exp()
        counts = (sources[:, rows].T @ targets).mul_(probs)
        for n in places:
            log_counts = log_probs + log_source[n, rows].unsqueeze(1) + log_target[n]
            counts += log_counts.exp_().mul_(weight[n])
        yield rows, counts, probs


def _last(log_alpha: Tensor, windows: Windows) -> Tensor:
    """The filtered distribution (B, Z) at each row's last position."""
    if windows.ids.shape[1] == 0:
        return windows.carried
    place = (windows.lengths - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, log_alpha.shape[2])
    return log_alpha.gather(1, place).squeeze(1)
