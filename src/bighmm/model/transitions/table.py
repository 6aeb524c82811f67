"""Transition logits as a table: p(j | i) = exp(s_ij − c_i), c_i = log Σ_j exp(s_ij)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from bighmm.base.caching import cached, is_cached
from bighmm.model.support.base import States, Support
from bighmm.model.transitions.base import EVERY, Transitions, register_transitions
from bighmm.ops.dense_chain.passes import TableTransitions
from bighmm.ops.gather import take_square
from bighmm.ops.table_chain import row_log_shares


@register_transitions
@dataclass(frozen=True, eq=False)
class Table(Transitions):
    """Logits s (Z, Z). Memory grows with Z²; for small models and Baum-Welch."""

    family: ClassVar[str] = "table"
    capturable: ClassVar[bool] = True

    table: Tensor
    rounded: bool = False  # kernels may round the probabilities to bfloat16 and divide by their sum
    normalised: bool = False  # s are log-probabilities, whose gradient is the expected moves

    @property
    def num_states(self) -> int:
        return len(self.table)

    @property
    def operands(self) -> tuple[Tensor, ...]:
        return (self.table,)

    def with_operands(self, *operands: Tensor) -> Table:
        (table,) = operands
        return Table(table, self.rounded, self.normalised)

    @property
    def norm(self) -> Tensor:
        """c (Z,), cached."""
        if self.normalised:
            return self.table.new_zeros(len(self.table))
        return cached(self, "_norm", self.operands, lambda: self.table.logsumexp(1))

    def log_probs(
        self, rows: States = EVERY, columns: States = EVERY, into: Tensor | None = None
    ) -> Tensor:
        if rows is EVERY and columns is EVERY and into is None:
            if not self.normalised and not is_cached(self, "_norm"):
                return row_log_shares(self.table)
            return self.table - self.norm.unsqueeze(1)
        norm = take_states(self.norm, rows)[:, None]
        if isinstance(columns, slice):  # first what costs nothing
            logits = take_states(self.table[:, columns], rows)
        else:
            logits = take_states(self.table, rows).index_select(1, columns)
        return torch.sub(logits, norm, out=into)

    def between(self, before: Tensor, after: Tensor) -> Tensor:
        cells = before * self.num_states + after
        logits = self.table.reshape(-1).index_select(0, cells)
        return logits - self.norm.index_select(0, before)

    def tiles(self, support: Support, before: Tensor, after: Tensor) -> Tensor:
        rows, columns = support.valid_states(before), support.valid_states(after)
        cells = rows.unsqueeze(2) * self.num_states + columns.unsqueeze(1)
        logits = self.table.reshape(-1).index_select(0, cells.view(-1)).view(cells.shape)
        return logits.sub_(support.gather(self.norm, before).unsqueeze(2))

    def pull_back(
        self, rows: slice, counts: Tensor, probs: Tensor, grads: Sequence[Tensor]
    ) -> None:
        if self.normalised:
            grads[0][rows] += counts
        else:
            grads[0][rows] += torch.addcmul(counts, probs, counts.sum(1, keepdim=True), value=-1)

    def restrict(self, kept: Tensor) -> Table:
        return Table(take_square(self.table, kept, "auto"), self.rounded)

    def precompute(self) -> None:
        _ = self.norm

    def dense_pass(self) -> TableTransitions | None:
        return TableTransitions(self.normalised) if self.rounded else None

    def settings(self) -> dict[str, Any]:
        return {"rounded": self.rounded, "normalised": self.normalised}


def take_states(table: Tensor, states: States) -> Tensor:
    """Rows of a table (Z, …)."""
    return table[states] if isinstance(states, slice) else table.index_select(0, states)
