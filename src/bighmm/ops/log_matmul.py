"""Products log Σ_k exp(a_ik + b_kj), done in probability space and repaired in log space.

A product of scaled probabilities is fast, but a sum whose terms are all far below the largest one
of its row is flushed to zero. `log_product` multiplies in probability space, finds the sums that
may have lost mass that way, and computes these few again in log space. The result is right for any
finite logarithms, and -inf where every term is.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from bighmm.ops import memory
from bighmm.ops.matmul import exact_products

# A sum of terms scaled to at most 1 that comes out below this may have lost terms which were
# flushed to zero; above it, what was lost is under one part in a million.
SMALLEST_SUM = {torch.float32: 1e-28, torch.float64: 1e-280}


def log_product(
    log_left: Tensor,
    multiply: Callable[[Tensor], Tensor],
    terms: Callable[[Tensor, Tensor], Tensor],
    reachable: Callable[[], Tensor] | None = None,
) -> Tensor:
    """log Σ_k exp(log_left_bk) M_kj (B, J), for log_left (B, K) and a matrix M of numbers up to 1.

    multiply: weights (B, K) to weights · M (B, J), in probability space.
    terms: the logarithms (N, K) that are summed for the entries (b, j), given as two tensors (N,).
    reachable: which entries (B, J) of M can be reached at all, called only if a sum is low; the
        others are rightly zero and need not be computed again.
    """
    highest = log_left.amax(1, keepdim=True)
    top = finite_or_zero(highest)
    with exact_products():
        mass = multiply((log_left - top).exp())
    result = mass.log() + top
    low = mass < SMALLEST_SUM[mass.dtype]
    if bool(low.any()):
        low &= highest > -torch.inf
        if reachable is not None:
            low &= reachable()
        rows, columns = torch.nonzero(low, as_tuple=True)
        for piece in memory.pieces(len(rows), log_left.shape[1], log_left.device):
            some = rows[piece], columns[piece]
            result[some] = terms(*some).logsumexp(1)
    return result


def log_matmul(left: Tensor, right: Tensor) -> Tensor:
    """log Σ_k exp(left_ik + right_kj), batched: (..., I, K), (..., K, J) -> (..., I, J)."""
    batch, (height, inner), width = left.shape[:-2], left.shape[-2:], right.shape[-1]
    peaks, scaled = scale_rows(right)
    weights = (left + peaks.unsqueeze(-2)).reshape(-1, inner)
    flat_left, flat_right = left.reshape(-1, inner), right.reshape(-1, inner, width)

    def multiply(w: Tensor) -> Tensor:
        return (w.view(*batch, height, inner) @ scaled).reshape(-1, width)

    def terms(rows: Tensor, columns: Tensor) -> Tensor:
        return flat_left[rows] + flat_right[rows // height, :, columns]

    def reachable() -> Tensor:
        possible = (left > -torch.inf).to(left.dtype) @ (right > -torch.inf).to(left.dtype)
        return (possible > 0).reshape(-1, width)

    return log_product(weights, multiply, terms, reachable).view(*batch, height, width)


def finite_or_zero(values: Tensor) -> Tensor:
    """-inf replaced by 0, for use as an offset."""
    return values.nan_to_num(nan=torch.nan, posinf=torch.inf, neginf=0.0)


def scale_rows(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """Row maxima (..., K), and tiles (..., K, J) as probabilities with every row's maximum at 1."""
    peaks = finite_or_zero(tiles.amax(-1))
    return peaks, (tiles - peaks.unsqueeze(-1)).exp_()


def recentred(scores: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """Scores (B, …) with the best of each row at 0, and total (B,) with what was taken from them.

    Sums over a long text have many digits, and differences between states only the last few. So
    the sums are kept apart, in float64.
    """
    top = finite_or_zero(scores.flatten(1).amax(1))
    return scores - top.view(-1, *[1] * (scores.dim() - 1)), total + top.double()
