"""A step of AdamW for pieces of many tensors, given by their addresses."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from bighmm.ops.many_adamw import SIZE
from bighmm.ops.row_adamw import Rates
from bighmm.ops.row_adamw.triton import constants, moved


def update(pieces: Tensor, grads: Tensor, rates: Rates, scale: Tensor | None) -> None:
    _update[(len(pieces),)](
        pieces,
        grads,
        torch.as_tensor(rates.lr, dtype=torch.float32, device=grads.device),
        grads if scale is None else scale,
        *constants(rates),
        SCALED=scale is not None,
        SIZE=SIZE,
        num_warps=4,
    )


@triton.jit
def _update(
    pieces, grads, rate, scale, beta1, rest1, log_beta1, beta2, rest2, log_beta2, eps, weight_decay,
    SCALED: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    piece = pieces + tl.program_id(0) * 6
    table = tl.load(piece).to(tl.pointer_type(tl.float32))
    first = tl.load(piece + 1).to(tl.pointer_type(tl.float32))
    second = tl.load(piece + 2).to(tl.pointer_type(tl.float32))
    steps = tl.load(piece + 3).to(tl.pointer_type(tl.float32))
    n = tl.arange(0, SIZE)
    inside = n < tl.load(piece + 5)
    g = tl.load(grads + tl.load(piece + 4) + n, mask=inside, other=0.0)
    m = tl.load(first + n, mask=inside, other=0.0)
    v = tl.load(second + n, mask=inside, other=0.0)
    p = tl.load(table + n, mask=inside, other=0.0)
    t = tl.load(steps).to(tl.float64)
    lr = tl.load(rate)
    if SCALED:
        g = g / tl.load(scale)
    p, m, v = moved(
        p, m, v, g, t, lr, beta1, rest1, log_beta1, beta2, rest2, log_beta2, eps, weight_decay
    )
    tl.store(first + n, m, mask=inside)
    tl.store(second + n, v, mask=inside)
    tl.store(table + n, p, mask=inside)
