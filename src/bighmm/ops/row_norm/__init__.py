"""The row normaliser of factored logits, without the matrix of logits.

    c_i = log Σ_j exp(leaving_i · entering_j + bias_j)

The matrix of logits is R × Z, far too large to keep. It is made in chunks of rows, and made again
in the backward pass. With p_ij = exp(leaving_i · entering_j + bias_j − c_i) the gradient of
Σ_i g_i c_i is

    d leaving_i  = g_i Σ_j p_ij entering_j
    d entering_j = Σ_i g_i p_ij leaving_i        d bias_j = Σ_i g_i p_ij

The first sum does not depend on g, so the forward pass takes it along while it has the chunk.
The same serves for emissions that every state can make: rows are states and columns are words.

Nothing of this depends on a batch. Where several processes do a training step together
(`base.processes.in_step`) each makes the chunks of its own share of the rows, forward and backward,
and its gradients are its part of a sum, as those of all parameters are (`SharedRows`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bighmm.base import processes
from bighmm.base.processes import Processes
from bighmm.ops.impl import Impl, use_triton
from bighmm.ops.matmul import as_operand
from bighmm.ops.row_norm import plain

__all__ = ["SharedRows", "row_norm"]

Forward = Callable[[Tensor, Tensor, Tensor | None, bool], tuple[Tensor, Tensor | None]]


def row_norm(
    leaving: Tensor,
    entering: Tensor,
    bias: Tensor | None = None,
    impl: Impl = "torch",
    of_model: bool = False,
) -> Tensor:
    """c (R,) for leaving (R, H), entering (Z, H) and bias (Z,); differentiable in all.

    of_model: the operands are the same in all processes of a training step, which share the rows.
    The Triton form multiplies in bfloat16: the operands must have such values already (see
    `rounding`).
    """
    return _RowNorm.apply(leaving, entering, bias, use_triton(leaving, impl), of_model)


class SharedRows(NamedTuple):
    """Which rows a process computes, of those that all have."""

    here: Processes

    @staticmethod
    def of_step(with_gradient: bool) -> SharedRows:
        """Some rows for each process in a training step, else all for this one."""
        return SharedRows(processes.splitting() if with_gradient else processes.ALONE)

    def forward(
        self,
        forward: Forward,
        leaving: Tensor,
        entering: Tensor,
        bias: Tensor | None,
        with_mean: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """c (R,) of all rows, and the mean (r, H) of a process's own, by a form of `forward`."""
        if self.here.alone:
            return forward(leaving, entering, bias, with_mean)
        own = self.here.share(len(leaving))
        found, mean = forward(leaving[own], entering, bias, with_mean)
        norm = found.new_zeros(len(leaving))
        norm[own] = found
        self.here.sum_([norm])
        return norm, mean

    def backward(
        self, backward: Callable[..., tuple[Tensor, Tensor]], *given: Any, **settings: Any
    ) -> tuple[Tensor, Tensor]:
        """The gradients of entering and bias, by a form of `backward`.

        given: leaving, entering, bias, norm and grad of all rows; the last as `summed` gives it.
        """
        if self.here.alone:
            return backward(*given, **settings)
        leaving, entering, bias, norm, grad = given
        own = self.here.share(len(leaving))
        return backward(leaving[own], entering, bias, norm[own], grad[own].contiguous(), **settings)

    def summed(self, grad: Tensor) -> Tensor:
        """The gradient (R,) of the norm, of the batch rows of all processes."""
        if self.here.alone:
            return grad
        total = grad.clone(memory_format=torch.contiguous_format)
        self.here.sum_([total])
        return total

    def of_leaving(self, grad: Tensor, mean: Tensor) -> Tensor:
        """The gradient (R, H) of leaving; zero in the rows of other processes."""
        if self.here.alone:
            return grad.unsqueeze(1) * mean
        found, own = mean.new_zeros(len(grad), mean.shape[1]), self.here.share(len(grad))
        torch.mul(grad[own].unsqueeze(1), mean, out=found[own])
        return found


class _RowNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        leaving: Tensor,
        entering: Tensor,
        bias: Tensor | None,
        in_triton: bool,
        of_model: bool,
    ) -> Tensor:
        with_mean = any(ctx.needs_input_grad)
        shared = SharedRows.of_step(with_mean and of_model)
        if in_triton:
            from bighmm.ops.row_norm import triton

            leaving, entering = as_operand(leaving), as_operand(entering)
            norm, mean = shared.forward(triton.forward, leaving, entering, bias, with_mean)
        else:
            norm, mean = shared.forward(plain.forward, leaving, entering, bias, with_mean)
        if with_mean:
            ctx.in_triton, ctx.shared = in_triton, shared
            ctx.save_for_backward(leaving, entering, bias, norm, mean)
        return norm

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        leaving, entering, bias, norm, mean = ctx.saved_tensors
        grad = ctx.shared.summed(grad)
        given = leaving, entering, bias, norm, grad
        if ctx.in_triton:
            from bighmm.ops.row_norm import triton

            given = *given[:4], grad.contiguous()
            of_entering, of_bias = ctx.shared.backward(triton.backward, *given)
        else:
            of_entering, of_bias = ctx.shared.backward(plain.backward, *given)
        of_leaving = ctx.shared.of_leaving(grad, mean)
        return of_leaving, of_entering, None if bias is None else of_bias, None, None
