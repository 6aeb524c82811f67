"""Emission distributions log p(x | z): as a table, or as inner products that are made when asked.

A table has a column for each of the K states of a token, in the support's order. The factored form
is for models where every state can emit every token: the table would be V × Z, and training needs
only the rows of the tokens at hand and the states' normalisers, which are streamed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bighmm.base.caching import cached
from bighmm.ops import Impl
from bighmm.ops.row_norm import row_norm


class Emissions(Protocol):
    @property
    def operands(self) -> tuple[Tensor, ...]:
        """The tensors that the probabilities are made of."""
        ...

    @property
    def table(self) -> Tensor:
        """log p(x | z) (V, K)."""
        ...

    def of(self, tokens: Tensor) -> Tensor:
        """Rows (N, K) of the table for tokens (N,)."""
        ...

    def at(self, tokens: Tensor, places: Tensor) -> Tensor:
        """log p(x | z) (N,) for tokens (N,) and the places of z among each token's states (N,)."""
        ...

    def to(self, device: torch.device, dtype: torch.dtype) -> Emissions: ...

    def detach(self) -> Emissions:
        """The same without a gradient."""
        ...


@dataclass(frozen=True, eq=False)
class EmissionTable:
    table: Tensor  # (V, K)

    @property
    def operands(self) -> tuple[Tensor, ...]:
        return (self.table,)

    def of(self, tokens: Tensor) -> Tensor:
        return self.table.index_select(0, tokens)

    def at(self, tokens: Tensor, places: Tensor) -> Tensor:
        return self.table.reshape(-1).index_select(0, tokens * self.table.shape[1] + places)

    def to(self, device: torch.device, dtype: torch.dtype) -> EmissionTable:
        return EmissionTable(self.table.to(device, dtype))

    def detach(self) -> EmissionTable:
        return EmissionTable(self.table.detach())


@dataclass(frozen=True, eq=False)
class FactoredEmission:
    """Logits emit_z · words_x + bias_x, with the values of bfloat16 so that kernels may be used."""

    emit: Tensor  # (Z, H)
    words: Tensor  # (V, H)
    bias: Tensor  # (V,)

    @property
    def operands(self) -> tuple[Tensor, ...]:
        return (self.emit, self.words, self.bias)

    @property
    def norm(self) -> Tensor:
        """log Σ_x exp(logit) (Z,), computed once."""
        return cached(self, "_norm", self.operands, self._compute_norm)

    @property
    def table(self) -> Tensor:
        return cached(self, "_table", self.operands, self._compute_table)

    def of(self, tokens: Tensor) -> Tensor:
        words, bias = self.words.index_select(0, tokens), self.bias.index_select(0, tokens)
        return torch.addmm(bias.unsqueeze(1), words, self.emit.T) - self.norm

    def at(self, tokens: Tensor, places: Tensor) -> Tensor:
        words, emit = self.words.index_select(0, tokens), self.emit.index_select(0, places)
        bias = self.bias.index_select(0, tokens)
        return (words * emit).sum(1) + bias - self.norm.index_select(0, places)

    def to(self, device: torch.device, dtype: torch.dtype) -> FactoredEmission:
        return FactoredEmission(*(t.to(device, dtype) for t in self.operands))

    def detach(self) -> FactoredEmission:
        return FactoredEmission(*(t.detach() for t in self.operands))

    def _compute_norm(self) -> Tensor:
        impl: Impl = "auto" if self.emit.dtype == torch.float32 else "torch"
        return row_norm(self.emit, self.words, self.bias, impl=impl)

    def _compute_table(self) -> Tensor:
        return torch.addmm(self.bias.unsqueeze(1), self.words, self.emit.T) - self.norm
