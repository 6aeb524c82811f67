"""A step of AdamW for some rows of a table, with a step count for each row."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from bighmm.ops.impl import Impl, use_triton
from bighmm.ops.row_adamw import plain

__all__ = ["Moments", "Rates", "update_rows"]


@dataclass(frozen=True)
class Rates:
    lr: float | Tensor  # on a GPU a tensor, which a captured step reads anew
    beta1: float
    beta2: float
    eps: float
    weight_decay: float


@dataclass(frozen=True)
class Moments:
    first: Tensor  # (Z, H), the mean of the gradients
    second: Tensor  # (Z, H), that of their squares
    steps: Tensor  # (Z,) int32, the steps in which a row had a gradient


def update_rows(
    table: Tensor,
    moments: Moments,
    rows: Tensor | None,
    grad: Tensor,
    rates: Rates,
    scale: Tensor | None = None,
    impl: Impl = "auto",
) -> None:
    """Change the rows `rows` (n,) of table (Z, H) and of its moments in place.

    rows: different numbers of rows, which is not checked; None for all. grad: (n, H), divided by
    `scale` (), if given. A row whose gradient is zero everywhere is passed over. For the others,
    with t the step count of a row, this step included, and g its gradient:

        m ← β₁ m + (1 − β₁) g        θ ← (1 − lr · weight_decay) θ
        v ← β₂ v + (1 − β₂) g²       θ ← θ − lr · m / (1 − β₁ᵗ) / (√(v / (1 − β₂ᵗ)) + ε)

    Nothing of size (Z, H) is made, and in Triton the host is not asked for a number.
    """
    if table.dtype == torch.float32 and use_triton(table, impl):
        from bighmm.ops.row_adamw import triton

        triton.update(table, moments, rows, grad, rates, scale)
    else:
        plain.update(table, moments, rows, grad, rates, scale)
