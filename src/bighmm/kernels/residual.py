"""The residual network of a state's embedding: LayerNorm(relu(W₂ y + b₂) + y), y = relu(W₁ x + b₁).

On a GPU the products are in bfloat16 with float32 sums, and what lies between them is one Triton
kernel each time, forward and backward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from bighmm.kernels import Impl, operand, use_triton

EPSILON = 1e-5


def residual(
    x: Tensor,
    first: tuple[Tensor, Tensor],
    second: tuple[Tensor, Tensor],
    norm: tuple[Tensor, Tensor],
    impl: Impl = "torch",
) -> Tensor:
    """x (N, H); weight and bias of the two layers and of the norm; the result is (N, H)."""
    if use_triton(x, impl):
        return _Residual.apply(x, *first, *second, *norm)
    y = functional.linear(x, *first).relu()
    z = functional.linear(y, *second).relu() + y
    return functional.layer_norm(z, z.shape[1:], *norm, eps=EPSILON)


class _Residual(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        w1: Tensor,
        b1: Tensor,
        w2: Tensor,
        b2: Tensor,
        scale: Tensor,
        b: Tensor,
    ) -> Tensor:
        from bighmm.kernels import residual_triton as kernels

        x, w1, w2 = operand(x), operand(w1), operand(w2)
        y = kernels.add_relu(x @ w1.T, b1)
        u = y @ w2.T
        result, centre, spread = kernels.add_norm(u, b2, y, scale, b, EPSILON)
        ctx.save_for_backward(x, w1, w2, b2, scale, y, u, centre, spread)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        from bighmm.kernels import residual_triton as kernels

        x, w1, w2, b2, scale, y, u, centre, spread = ctx.saved_tensors
        of_z, of_u, sums = kernels.add_norm_backward(
            grad.contiguous(), u, b2, y, scale, centre, spread
        )
        of_y, of_b1 = kernels.add_relu_backward(of_u @ w2, of_z, y)
        return (
            _product(of_y, w1),
            _product(of_y.T, x),
            of_b1,
            _product(of_u.T, y),
            sums[2],
            sums[0],
            sums[1],
        )


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b in float32, whatever the operands are."""
    if a.dtype == torch.float32:
        return a @ b
    try:
        return torch.mm(a, b, out_dtype=torch.float32)
    except TypeError:  # torch before 2.8
        return (a @ b).float()
