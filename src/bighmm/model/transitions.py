"""Two forms of p(z' | z) behind one small protocol: a table of logits, and factored logits.

    p(j | i) = exp(s_ij − c_i),   c_i = log Σ_j exp(s_ij)

`Table` keeps s (Z, Z). `Factored` keeps leaving and entering vectors, s = leaving · enteringᵀ,
and never holds anything of size Z × Z. Everything here is differentiable. Shape letters: hmm.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bighmm.base.caching import cached
from bighmm.model.support import Support, some_states
from bighmm.ops import Impl
from bighmm.ops.row_norm import row_norm

EVERY = slice(None)


class Transitions(Protocol):
    @property
    def num_states(self) -> int: ...

    @property
    def rounded(self) -> bool:
        """Whether kernels that multiply bfloat16 numbers may be used."""
        ...

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """The tensors that the logits s are made of."""
        ...

    @property
    def norm(self) -> Tensor:
        """c (Z,), computed once, with its gradient if one is wanted."""
        ...

    def logits(self, rows: Tensor | slice, columns: Tensor | slice = EVERY) -> Tensor:
        """s (R, C) from the states `rows` to the states `columns`."""
        ...

    def log_probs(
        self, rows: Tensor | slice, columns: Tensor | slice = EVERY, into: Tensor | None = None
    ) -> Tensor:
        """log p(j | i) (R, C) from the states `rows` to `columns`, written `into` where given."""
        ...

    def tiles(self, support: Support, before: Tensor, after: Tensor) -> Tensor:
        """log p(j | i) (N, K, K) for states i of tokens `before` (N,) and j of `after` (N,)."""
        ...

    def between(self, before: Tensor, after: Tensor) -> Tensor:
        """log p(after | before) (N,) for pairs of states (N,)."""
        ...

    def pull_back(self, rows: slice, grad: Tensor, grads: tuple[Tensor, ...]) -> None:
        """Add to `grads`, one per operand, the gradient that `grad` (R, Z) on s[rows] implies."""
        ...

    def to(self, device: torch.device, dtype: torch.dtype) -> Transitions: ...

    def detach(self) -> Transitions:
        """The same, with operands that ask for no gradient."""
        ...


@dataclass(frozen=True, eq=False)
class Table:
    """Transition logits as they are: s (Z, Z)."""

    table: Tensor
    rounded: bool = False  # kernels may round the probabilities to bfloat16 and divide by their sum

    @property
    def num_states(self) -> int:
        return len(self.table)

    @property
    def operands(self) -> tuple[Tensor, ...]:
        return (self.table,)

    @property
    def norm(self) -> Tensor:
        return cached(self, "_norm", self.operands, lambda: self.table.logsumexp(1))

    def logits(self, rows: Tensor | slice, columns: Tensor | slice = EVERY) -> Tensor:
        if isinstance(columns, slice):  # first what costs nothing
            return _take(self.table[:, columns], rows)
        return _take(self.table, rows).index_select(1, columns)

    def log_probs(
        self, rows: Tensor | slice, columns: Tensor | slice = EVERY, into: Tensor | None = None
    ) -> Tensor:
        return torch.sub(self.logits(rows, columns), _take(self.norm, rows)[:, None], out=into)

    def tiles(self, support: Support, before: Tensor, after: Tensor) -> Tensor:
        rows, columns = some_states(support, before), some_states(support, after)
        cells = rows.unsqueeze(2) * self.num_states + columns.unsqueeze(1)
        logits = self.table.reshape(-1).index_select(0, cells.view(-1)).view(cells.shape)
        return logits.sub_(support.gather(self.norm, before).unsqueeze(2))

    def between(self, before: Tensor, after: Tensor) -> Tensor:
        cells = before * self.num_states + after
        logits = self.table.reshape(-1).index_select(0, cells)
        return logits - self.norm.index_select(0, before)

    def pull_back(self, rows: slice, grad: Tensor, grads: tuple[Tensor, ...]) -> None:
        grads[0][rows] += grad

    def to(self, device: torch.device, dtype: torch.dtype) -> Table:
        return Table(self.table.to(device, dtype), self.rounded)

    def detach(self) -> Table:
        return Table(self.table.detach(), self.rounded)


@dataclass(frozen=True, eq=False)
class Factored:
    """Transition logits as inner products: s = leaving · enteringᵀ."""

    leaving: Tensor  # (Z, H)
    entering: Tensor  # (Z, H)
    rounded: bool = False  # the values are those of bfloat16, so kernels may multiply them

    @property
    def num_states(self) -> int:
        return len(self.leaving)

    @property
    def operands(self) -> tuple[Tensor, ...]:
        return (self.leaving, self.entering)

    @property
    def norm(self) -> Tensor:
        return cached(
            self,
            "_norm",
            self.operands,
            lambda: row_norm(self.leaving, self.entering, impl=self._impl),
        )

    @property
    def _impl(self) -> Impl:
        return "auto" if self.rounded and self.leaving.dtype == torch.float32 else "torch"

    def logits(self, rows: Tensor | slice, columns: Tensor | slice = EVERY) -> Tensor:
        return _take(self.leaving, rows) @ _take(self.entering, columns).T

    def log_probs(
        self, rows: Tensor | slice, columns: Tensor | slice = EVERY, into: Tensor | None = None
    ) -> Tensor:
        minus_norm = -_take(self.norm, rows)[:, None]
        leaving, entering = _take(self.leaving, rows), _take(self.entering, columns)
        return torch.addmm(minus_norm, leaving, entering.T, out=into)

    def tiles(self, support: Support, before: Tensor, after: Tensor) -> Tensor:
        leaving = support.gather(self.leaving, before)  # (N, K, H)
        entering = support.gather(self.entering, after)  # (N, K, H)
        minus_norm = -support.gather(self.norm, before).unsqueeze(2)
        return torch.baddbmm(minus_norm, leaving, entering.mT)

    def between(self, before: Tensor, after: Tensor) -> Tensor:
        logits = self.leaving.index_select(0, before) * self.entering.index_select(0, after)
        return logits.sum(1) - self.norm.index_select(0, before)

    def pull_back(self, rows: slice, grad: Tensor, grads: tuple[Tensor, ...]) -> None:
        grads[0][rows] += grad @ self.entering
        grads[1].addmm_(grad.T, self.leaving[rows])

    def to(self, device: torch.device, dtype: torch.dtype) -> Factored:
        return Factored(
            self.leaving.to(device, dtype), self.entering.to(device, dtype), self.rounded
        )

    def detach(self) -> Factored:
        return Factored(self.leaving.detach(), self.entering.detach(), self.rounded)


def _take(table: Tensor, rows: Tensor | slice) -> Tensor:
    return table[rows] if isinstance(rows, slice) else table.index_select(0, rows)
