"""Principal component analysis of points that need not fit in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class PCA:
    """The first D principal components of points of width H."""

    mean: Tensor  # (H,)
    components: Tensor  # (D, H), orthonormal rows
    share: float  # the share of the variance that the components explain

    def project(self, x: Tensor) -> Tensor:
        """The coordinates (N, D) of points x (N, H)."""
        return (x - self.mean) @ self.components.T

    def restore(self, y: Tensor) -> Tensor:
        """The points (N, H) with coordinates y (N, D)."""
        return y @ self.components + self.mean


def fit_pca(chunks: Iterable[Tensor], width: int) -> PCA:
    """The first `width` principal components of points that are given in chunks (n, H).

    The mean and the covariance are computed in float64 on the chunks' device, after subtracting the
    mean of the first chunk. The entry of each component with the largest absolute value is
    positive, so that the result is unique.

    Raises ValueError for a width outside 1 … H, and if there are no points.
    """
    count, shift = 0, None
    for chunk in chunks:
        x = chunk.double()
        if shift is None:
            shift = x.mean(0)
            total = torch.zeros_like(shift)
            products = torch.zeros(len(shift), len(shift), dtype=x.dtype, device=x.device)
        x = x - shift
        total += x.sum(0)
        products += x.T @ x
        count += len(x)
    if shift is None:
        raise ValueError("principal components need points, and there are none")
    if not 1 <= width <= len(shift):
        raise ValueError(
            f"there cannot be {width} principal components of vectors that are {len(shift)} wide; "
            f"use 1 to {len(shift)}"
        )
    mean = total / count
    values, vectors = torch.linalg.eigh(products / count - torch.outer(mean, mean))  # ascending
    components = vectors.T.flip(0)[:width]
    largest = components.gather(1, components.abs().argmax(1, keepdim=True))
    components = components * largest.sign()
    values = values.clamp(min=0)
    share = float(values[-width:].sum() / values.sum()) if float(values.sum()) > 0 else 1.0
    return PCA((mean + shift).float(), components.float().contiguous(), share)
