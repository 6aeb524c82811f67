"""Principal components of points that need not fit in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class PCA:
    """The directions in which points differ most, as orthonormal rows; and their mean."""

    mean: Tensor  # (H,)
    components: Tensor  # (D, H)
    share: float  # of the points' variance that lies in these directions

    def project(self, x: Tensor) -> Tensor:
        """(N, D) from (N, H)."""
        return (x - self.mean) @ self.components.T

    def restore(self, y: Tensor) -> Tensor:
        """(N, H) from (N, D): the point with these coordinates in the plane of the components."""
        return y @ self.components + self.mean


def fit_pca(chunks: Iterable[Tensor], width: int) -> PCA:
    """The first `width` principal components of points that come in chunks (n, H).

    Means and products are summed in float64, of differences from the first chunk's mean, and kept
    on the chunks' device. Each component's largest entry is positive, so that there is one answer.

    Raises ValueError for a width outside 1 … H, and where there are no points.
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
