"""Residual networks of a state's embedding: LayerNorm(relu(W₂ y + b₂) + y), y = relu(W₁ x + b₁).

Several networks that read the same x are done together: their first layers are one product, and so
is the gradient of x. On a GPU the products are in bfloat16 with float32 sums, and what lies between
them is one Triton kernel each time, forward and backward.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from bighmm.ops.impl import Impl, use_triton
from bighmm.ops.matmul import as_operand, keep_operand, matmul

__all__ = ["EPSILON", "Network", "residuals", "scores"]

EPSILON = 1e-5


class Network(NamedTuple):
    w1: Tensor  # (H, H)
    b1: Tensor  # (H,)
    w2: Tensor  # (H, H)
    b2: Tensor  # (H,)
    scale: Tensor  # (H,) of the norm
    shift: Tensor  # (H,)


def residuals(x: Tensor, networks: list[Network], impl: Impl = "torch") -> list[Tensor]:
    """The result (N, H) of every network for the same x (N, H).

    The Triton form gives results with the values of bfloat16 (see `rounded`).
    """
    if use_triton(x, impl):
        flat = [t for network in networks for t in network]
        made = _Residuals.apply(x, len(networks), *flat)
        results, operands = made[: len(networks)], made[len(networks) :]
        for result, operand in zip(results, operands, strict=True):
            keep_operand(result, operand)
        return list(results)
    return [_plain(x, network) for network in networks]


def _plain(x: Tensor, network: Network) -> Tensor:
    y = functional.linear(x, network.w1, network.b1).relu()
    z = functional.linear(y, network.w2, network.b2).relu() + y
    return functional.layer_norm(z, z.shape[1:], network.scale, network.shift, eps=EPSILON)


class _Residuals(torch.autograd.Function):
    """Results, and after them their operands."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, number: int, *flat: Tensor) -> tuple[Tensor, ...]:
        from bighmm.ops.residual import triton

        networks = [Network(*flat[6 * i : 6 * i + 6]) for i in range(number)]
        x = as_operand(x)
        w1 = as_operand(torch.cat([network.w1 for network in networks]))
        w2 = as_operand(torch.cat([network.w2 for network in networks]))
        y = triton.add_relu(x @ w1.T, torch.cat([network.b1 for network in networks]))
        results, operands, kept = [], [], []
        parts = zip(networks, w2.chunk(number), y.chunk(number, dim=1), strict=True)
        for network, weight, part in parts:
            u = part @ weight.T
            result, operand, *moments = triton.add_norm(
                u, network.b2, part, network.scale, network.shift, EPSILON
            )
            results.append(result)
            operands.append(operand)
            kept += [network.b2, network.scale, u, *moments]
        ctx.number = number
        ctx.save_for_backward(x, w1, w2, y, *kept)
        ctx.mark_non_differentiable(*operands)
        ctx.set_materialize_grads(False)  # operands would get zeros
        return *results, *operands

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        from bighmm.ops.residual import triton

        number = ctx.number
        x, w1, w2, y, *kept = ctx.saved_tensors
        of_y = torch.empty_like(y)
        sums = triton.empty_sums(number, len(x), x.shape[1], x.device)
        of_w2 = []
        parts = zip(
            grads[:number],
            w2.chunk(number),
            y.chunk(number, dim=1),
            of_y.chunk(number, dim=1),
            sums,
            strict=True,
        )
        for i, (grad, weight, part, of_part, some) in enumerate(parts):
            b2, scale, u, centre, spread = kept[5 * i : 5 * i + 5]
            given = u.new_zeros(u.shape) if grad is None else grad.contiguous()
            of_z, of_u = triton.add_norm_backward(given, u, b2, part, scale, centre, spread, some)
            triton.add_relu_backward(of_u @ weight, of_z, part, of_part, some)
            of_w2.append(matmul(of_u.T, part))
        of_w1 = matmul(of_y.T, x).chunk(number)
        flat: list[Tensor] = []
        for first, second, some in zip(of_w1, of_w2, triton.summed(sums), strict=True):
            of_scale, of_shift, of_b2, of_b1 = some
            flat += [first, of_b1, second, of_b2, of_scale, of_shift]
        return matmul(of_y, w1), None, *flat


def scores(x: Tensor, weight: Tensor, impl: Impl = "torch") -> Tensor:
    """x · weight (N,) for rows x (N, H) and one weight (H,)."""
    return _Scores.apply(x, weight) if use_triton(x, impl) else x @ weight


class _Scores(torch.autograd.Function):
    """One product of a tall matrix with a vector and one with its transpose: libraries are slow."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        from bighmm.ops.residual import triton

        ctx.save_for_backward(x, weight)
        return triton.row_products(x.contiguous(), weight.contiguous())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        from bighmm.ops.residual import triton

        x, weight = ctx.saved_tensors
        return grad.unsqueeze(1) * weight, triton.weighted_sum(x, grad.contiguous())
