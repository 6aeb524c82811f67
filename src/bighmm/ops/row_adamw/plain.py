"""A step of AdamW for some rows, in torch, a part of the rows at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from bighmm.ops.row_adamw import Moments, Rates

NUMBERS = {"cpu": 1 << 16}  # changed at a time, which stay in a cache
NUMBERS_ELSEWHERE = 1 << 26


def update(
    table: Tensor,
    moments: Moments,
    rows: Tensor | None,
    grad: Tensor,
    rates: Rates,
    scale: Tensor | None,
) -> None:
    count = max(1, NUMBERS.get(table.device.type, NUMBERS_ELSEWHERE) // max(1, table.shape[1]))
    tensors = (table, moments.first, moments.second, moments.steps)
    for begin in range(0, len(grad), count):
        part = grad[begin : begin + count]
        touched = (part != 0).any(1).nonzero().squeeze(1)
        if rows is None:
            chosen = touched + begin
        else:
            chosen = rows[begin : begin + count].index_select(0, touched)
        part = part.index_select(0, touched)
        if scale is not None:
            part /= scale
        taken = [tensor.index_select(0, chosen) for tensor in tensors]
        _step(taken, part, rates)
        for tensor, changed in zip(tensors, taken, strict=True):
            tensor.index_copy_(0, chosen, changed)


def _step(tensors: list[Tensor], grad: Tensor, rates: Rates) -> None:
    """AdamW in place, for the same rows of the table, its moments and its steps."""
    table, first, second, steps = tensors
    steps += 1
    passed = steps.to(torch.float64).unsqueeze(1)
    mean_weight, square_weight = (  # of all gradients so far; (n, 1)
        (1 - beta**passed).to(table.dtype) for beta in (rates.beta1, rates.beta2)
    )
    first.lerp_(grad, 1 - rates.beta1)
    second.mul_(rates.beta2).addcmul_(grad, grad, value=1 - rates.beta2)
    table.mul_(1 - rates.lr * rates.weight_decay)
    size = (second / square_weight).sqrt_().add_(rates.eps)
    table.sub_(torch.div(first, size, out=size).mul_(rates.lr / mean_weight))
