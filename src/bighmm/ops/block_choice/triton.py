"""The softmax over blocks and its gradient, as Triton kernels over rows."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 32  # per program


def normalise(logits: Tensor, bias: Tensor, present: Tensor | None) -> tuple[Tensor, Tensor]:
    """log p (Z, S) of the columns `present`, or of all, and the normalisers (Z,)."""
    rows, columns = logits.shape
    number = columns if present is None else len(present)
    found = torch.empty(rows, number, dtype=torch.float32, device=logits.device)
    norm = torch.empty(rows, dtype=torch.float32, device=logits.device)
    _normalise[(triton.cdiv(rows, ROWS),)](
        logits,
        bias,
        bias if present is None else present,
        found,
        norm,
        rows,
        columns,
        number,
        SOME=present is not None,
        SOME_COLUMNS=max(16, triton.next_power_of_2(number)),
        **_shape(columns),
    )
    return found, norm


def pull_back(
    logits: Tensor,
    bias: Tensor,
    norm: Tensor,
    grad: Tensor,
    present: Tensor | None,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """The gradients of the logits (Z, M), of the given type, and of the bias (M,).

    grad (Z, S) is that of the columns `present`, or of all.
    """
    rows, columns = logits.shape
    number = grad.shape[1]
    of_logits = torch.empty(rows, columns, dtype=dtype, device=logits.device)
    of_bias = torch.zeros(columns, dtype=torch.float32, device=logits.device)
    place_of = bias
    if present is not None:
        place_of = torch.full((columns,), -1, dtype=torch.int32, device=logits.device)
        places = torch.arange(number, dtype=torch.int32, device=logits.device)
        place_of.index_copy_(0, present, places)
    _pull_back[(triton.cdiv(rows, ROWS),)](
        logits,
        bias,
        norm,
        grad,
        place_of,
        of_logits,
        of_bias,
        rows,
        columns,
        number,
        SOME=present is not None,
        **_shape(columns),
    )
    return of_logits, of_bias


def _shape(columns: int) -> dict[str, int]:
    padded = max(16, triton.next_power_of_2(columns))
    at_once = max(1, min(ROWS, 4096 // padded))
    warps = 4 if padded * at_once <= 4096 else 8
    return {"COLUMNS": padded, "ROWS": ROWS, "AT_ONCE": at_once, "num_warps": warps}


@triton.jit
def _normalise(
    logits, bias, present, found, norm, rows, columns, number, SOME: tl.constexpr, SOME_COLUMNS:
    tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    m = tl.arange(0, COLUMNS)
    shift = tl.load(bias + m, mask=m < columns, other=-float("inf"))
    s = tl.arange(0, SOME_COLUMNS)
    if SOME:
        column = tl.load(present + s, mask=s < number, other=0)
        of_column = tl.load(bias + column, mask=s < number, other=0.0)
    for offset in range(0, ROWS, AT_ONCE):
        row = tl.program_id(0) * ROWS + offset + tl.arange(0, AT_ONCE)
        of_row = row.to(tl.int64)[:, None]
        inside = (row < rows)[:, None] & (m < columns)[None, :]
        value = tl.load(logits + of_row * columns + m[None, :], mask=inside, other=0.0)
        value += shift[None, :]
        top = tl.max(value, 1)
        total = top + tl.log(tl.sum(tl.exp(value - top[:, None]), 1))
        tl.store(norm + row, total, mask=row < rows)
        if SOME:
            chosen = (row < rows)[:, None] & (s < number)[None, :]
            value = tl.load(logits + of_row * columns + column[None, :], mask=chosen, other=0.0)
            value += of_column[None, :] - total[:, None]
            tl.store(found + of_row * number + s[None, :], value, mask=chosen)
        else:
            tl.store(found + of_row * columns + m[None, :], value - total[:, None], mask=inside)


@triton.jit
def _pull_back(
    logits, bias, norm, grad, place_of, of_logits, of_bias, rows, columns, number, SOME:
    tl.constexpr, COLUMNS: tl.constexpr, ROWS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    m = tl.arange(0, COLUMNS)
    shift = tl.load(bias + m, mask=m < columns, other=-float("inf"))
    place = m
    if SOME:
        place = tl.load(place_of + m, mask=m < columns, other=-1)
    summed = tl.zeros([COLUMNS], tl.float32)
    for offset in range(0, ROWS, AT_ONCE):
        row = tl.program_id(0) * ROWS + offset + tl.arange(0, AT_ONCE)
        of_row = row.to(tl.int64)[:, None]
        inside = (row < rows)[:, None] & (m < columns)[None, :]
        value = tl.load(logits + of_row * columns + m[None, :], mask=inside, other=0.0)
        total = tl.load(norm + row, mask=row < rows, other=0.0)
        probs = tl.where(inside, tl.exp(value + shift[None, :] - total[:, None]), 0.0)
        given = inside & (place >= 0)[None, :]
        g = tl.load(grad + of_row * number + place[None, :], mask=given, other=0.0)
        g -= probs * tl.sum(g, 1)[:, None]
        summed += tl.sum(g, 0)
        result = g.to(of_logits.dtype.element_ty)
        tl.store(of_logits + of_row * columns + m[None, :], result, mask=inside)
    tl.atomic_add(of_bias + m, summed, mask=m < columns, sem="relaxed")
