"""Transition logits as inner products, with one softmax over all states.

    p(j | i) = exp(leaving_i · entering_j − c_i),   c_i = log Σ_j exp(leaving_i · entering_j)

Nothing of size Z × Z is ever held. The normalisers c cost 2 Z² H operations, whatever the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from bighmm.base.caching import cached, needs_gradient
from bighmm.model.support.base import States, Support
from bighmm.model.transitions.base import (
    EVERY,
    BlockedChain,
    Transitions,
    register_transitions,
)
from bighmm.model.transitions.table import take_states
from bighmm.ops.dense_chain.passes import FactoredTransitions
from bighmm.ops.flat_chain import flat_chain
from bighmm.ops.gather import take_rows
from bighmm.ops.impl import Impl
from bighmm.ops.row_norm import row_norm
from bighmm.ops.windows import Windows


@register_transitions
@dataclass(frozen=True, eq=False)
class Flat(Transitions):
    """Logits s = leaving · enteringᵀ."""

    family: ClassVar[str] = "flat"
    capturable: ClassVar[bool] = True

    leaving: Tensor  # (Z, H)
    entering: Tensor  # (Z, H)
    rounded: bool = False  # the values are those of bfloat16, so kernels may multiply them

    @property
    def num_states(self) -> int:
        return len(self.leaving)

    @property
    def operands(self) -> tuple[Tensor, ...]:
        return (self.leaving, self.entering)

    def with_operands(self, *operands: Tensor) -> Flat:
        leaving, entering = operands
        return Flat(leaving, entering, self.rounded)

    @property
    def norm(self) -> Tensor:
        """c (Z,), cached, with its gradient if one is needed."""
        return cached(self, "_norm", self.operands, self._compute_norm)

    def log_probs(
        self, rows: States = EVERY, columns: States = EVERY, into: Tensor | None = None
    ) -> Tensor:
        minus_norm = -take_states(self.norm, rows)[:, None]
        leaving, entering = take_states(self.leaving, rows), take_states(self.entering, columns)
        return torch.addmm(minus_norm, leaving, entering.T, out=into)

    def between(self, before: Tensor, after: Tensor) -> Tensor:
        logits = self.leaving.index_select(0, before) * self.entering.index_select(0, after)
        return logits.sum(1) - self.norm.index_select(0, before)

    def tiles(self, support: Support, before: Tensor, after: Tensor) -> Tensor:
        leaving = support.gather(self.leaving, before)  # (N, K, H)
        entering = support.gather(self.entering, after)  # (N, K, H)
        minus_norm = -support.gather(self.norm, before).unsqueeze(2)
        return torch.baddbmm(minus_norm, leaving, entering.mT)

    def pull_back(
        self, rows: slice, counts: Tensor, probs: Tensor, grads: Sequence[Tensor]
    ) -> None:
        of_logits = torch.addcmul(counts, probs, counts.sum(1, keepdim=True), value=-1)
        grads[0][rows] += of_logits @ self.entering
        grads[1].addmm_(of_logits.T, self.leaving[rows])

    def restrict(self, kept: Tensor) -> Flat:
        vectors = (take_rows(x, kept, self._impl) for x in self.operands)
        return self.with_operands(*vectors)

    def precompute(self) -> None:
        _ = self.norm

    def blocked_chain(self, support: Support, kernels: bool) -> BlockedChain | None:
        return self._blocked_chain if kernels and self._impl == "auto" else None

    def dense_pass(self) -> FactoredTransitions | None:
        return FactoredTransitions() if self.rounded else None

    def settings(self) -> dict[str, Any]:
        return {"rounded": self.rounded}

    @property
    def _impl(self) -> Impl:
        return "auto" if self.rounded and self.leaving.dtype == torch.float32 else "torch"

    def _compute_norm(self) -> Tensor:
        return row_norm(self.leaving, self.entering, impl=self._impl, of_model=True)

    def _blocked_chain(
        self, windows: Windows, start: Tensor, emitted: Tensor
    ) -> tuple[Tensor, Tensor]:
        norm = None if needs_gradient(self.operands) else self.norm
        vectors = (self.leaving, self.entering)
        return flat_chain(windows, start, emitted, vectors, norm, "triton")
