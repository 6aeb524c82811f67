"""A step of AdamW for many small tensors in one launch.

Libraries give each tensor programs of its own, which have much to do one after the other where a
tensor is small and a GPU is large. Here all numbers are shared equally.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bighmm.ops.row_adamw import Rates

__all__ = ["Places", "update_many"]

SIZE = 1024  # numbers per program


@dataclass(frozen=True)
class Places:
    """Where the numbers of tensors and their moments are, in pieces of at most SIZE.

    The tensors must stay where they are: contiguous, float32, on one GPU.
    """

    pieces: Tensor  # (N, 6) long: the addresses of θ, m, v and the step count; place in all; count
    tensors: tuple[tuple[Tensor, ...], ...]

    @classmethod
    def of(cls, tensors: Sequence[tuple[Tensor, ...]]) -> Places:
        """tensors: θ, m, v and the step count () of each."""
        rows, before = [], 0
        for given in tensors:
            assert all(t.is_contiguous() and t.dtype == torch.float32 for t in given)
            count = given[0].numel()
            for first in range(0, count, SIZE):
                at = [t.data_ptr() + first * t.element_size() for t in given[:3]]
                rows.append([*at, given[3].data_ptr(), before + first, min(SIZE, count - first)])
            before += count
        return cls(torch.tensor(rows, device=tensors[0][0].device), tuple(tensors))

    def are_of(self, tensors: Sequence[tuple[Tensor, ...]]) -> bool:
        """Whether these are the places of these tensors."""
        return len(tensors) == len(self.tensors) and all(
            mine is other
            for known, given in zip(self.tensors, tensors, strict=True)
            for mine, other in zip(known, given, strict=True)
        )


def update_many(
    places: Places, grads: Sequence[Tensor], rates: Rates, scale: Tensor | None = None
) -> None:
    """One step of AdamW for all tensors, in place, with their gradients divided by `scale` ().

    The step counts, which are raised by one here, are those of `torch.optim.AdamW`, and so is what
    is computed (see `ops.row_adamw`).
    """
    from bighmm.ops.many_adamw import triton

    torch._foreach_add_([given[3] for given in places.tensors], 1)
    triton.update(places.pieces, torch.cat([g.reshape(-1) for g in grads]), rates, scale)
