"""Dropout on the numbers of vectors, as a function of a key: the same on every device.

    y_nh = x_nh / (1 − rate) where it is kept, else 0

The mask of a row depends on the key, on the `place` in the network that is masked and on the row's
id, not on where the row stands; or, if it is shared, all rows have the same.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bighmm.base import randomness
from bighmm.ops.impl import Impl, use_triton
from bighmm.ops.matmul import keep_operand

__all__ = ["chosen", "drop_features"]


def drop_features(
    x: Tensor,
    rate: float,
    key: Tensor,
    place: int,
    ids: Tensor | None = None,
    *,
    shared: bool = False,
    impl: Impl = "torch",
) -> Tensor:
    """x (N, H) with dropout at `rate`; differentiable.

    key () int64, see `base.randomness`. ids (N,): what the rows are called; without them 0 … N-1.
    The Triton form gives the values of bfloat16, after the division, and keeps them as an operand
    too.
    """
    if rate == 0:
        return x
    if use_triton(x, impl) and x.dtype == torch.float32:
        result, operand = _Dropped.apply(x, rate, key, place, ids, shared)
        keep_operand(result, operand)
        return result
    kept = chosen(1 - rate, key, place, (len(x), x.shape[1]), ids, shared=shared)
    return torch.where(kept, x * (1 / (1 - rate)), 0.0)


def chosen(
    share: float,
    key: Tensor,
    place: int,
    shape: tuple[int, int],
    ids: Tensor | None = None,
    *,
    shared: bool = False,
) -> Tensor:
    """(N, H) bool, each True with probability `share`; (1, H) if all rows share them."""
    rows, width = shape
    start = randomness.scrambled(key + place)
    column = torch.arange(width, device=key.device)
    if shared:
        number = column.unsqueeze(0)
    else:
        row = torch.arange(rows, device=key.device) if ids is None else ids
        number = row.unsqueeze(1) * width + column
    return randomness.scrambled(start + number) >= lowest(1 - share)


def lowest(rate: float) -> int:
    """The smallest noise of what is kept; noise is in -2^63 … 2^63 - 1."""
    return round((rate - 0.5) * 2**63) * 2


class _Dropped(torch.autograd.Function):
    """In float32, and as an operand."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        rate: float,
        key: Tensor,
        place: int,
        ids: Tensor | None,
        shared: bool,
    ) -> tuple[Tensor, Tensor]:
        from bighmm.ops.feature_dropout import triton

        ctx.given = (rate, lowest(rate), place, shared)
        ctx.save_for_backward(key, ids)
        result, operand = triton.drop(x, key, ids, *ctx.given, rounded=True)
        ctx.mark_non_differentiable(operand)
        ctx.set_materialize_grads(False)  # the operand would get zeros
        return result, operand

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _: None) -> tuple[Any, ...]:
        from bighmm.ops.feature_dropout import triton

        key, ids = ctx.saved_tensors
        found = triton.drop(grad, key, ids, *ctx.given, rounded=False)
        return found[0], None, None, None, None, None
