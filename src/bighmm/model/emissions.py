"""Emission distributions log p(x | z): a table, or inner products that are computed when asked.

A table has a column for each of the K states of a token, in the support's order. The factored form
is for models where every state can emit every token: the table would be V × Z, and training needs
only the rows of the tokens at hand and the states' normalisers, which are streamed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from bighmm.base.caching import cached
from bighmm.ops import memory
from bighmm.ops.dense_chain.passes import EmissionPass, FactoredEmissions, TableEmissions
from bighmm.ops.impl import Impl
from bighmm.ops.row_norm import row_norm

__all__ = ["EmissionTable", "Emissions", "FactoredEmission"]


class Emissions(Protocol):
    """What inference asks of emissions. A class that inherits from this gets the defaults below."""

    if TYPE_CHECKING:  # attributes, which may be fields of a dataclass

        @property
        def operands(self) -> tuple[Tensor, ...]:
            """The tensors that the probabilities are made of."""
            ...

        @property
        def table(self) -> Tensor:
            """log p(x | z) (V, K)."""
            ...

    def with_operands(self, *operands: Tensor) -> Emissions:
        """The same kind of emissions, made of other tensors."""
        ...

    @property
    def shape(self) -> tuple[int, ...] | None:
        """(V, K); None where only the table would tell."""
        return None

    def of(self, tokens: Tensor) -> Tensor:
        """Rows (N, K) of the table for tokens (N,)."""
        return self.table.index_select(0, tokens)

    def at(self, tokens: Tensor, places: Tensor) -> Tensor:
        """log p(x | z) (N,) for tokens (N,) and the places of z among each token's states (N,)."""
        table = self.table
        return table.reshape(-1).index_select(0, tokens * table.shape[1] + places)

    def probs(self) -> Tensor:
        """p(x | z) (V, K), cached where that is small and no gradient is due."""
        table = self.table
        if table.requires_grad or table.numel() > memory.CACHED:
            return table.exp()
        return cached(self, "_probs", (table,), table.exp)

    def dense_pass(self) -> EmissionPass | None:
        """What `ops.dense_chain` needs of these emissions on a GPU; None if it cannot be used."""
        return None

    def to(self, device: torch.device, dtype: torch.dtype) -> Emissions:
        return self.with_operands(*(t.to(device, dtype) for t in self.operands))

    def detach(self) -> Emissions:
        """The same without a gradient."""
        return self.with_operands(*(t.detach() for t in self.operands))


@dataclass(frozen=True, eq=False)
class EmissionTable(Emissions):
    table: Tensor  # (V, K)

    @property
    def operands(self) -> tuple[Tensor, ...]:
        return (self.table,)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.table.shape)

    def with_operands(self, *operands: Tensor) -> EmissionTable:
        return EmissionTable(*operands)

    def dense_pass(self) -> EmissionPass:
        return TableEmissions()


@dataclass(frozen=True, eq=False)
class FactoredEmission(Emissions):
    """Logits emit_z · words_x + bias_x, with the values of bfloat16 so that kernels may be used."""

    emit: Tensor  # (Z, H)
    words: Tensor  # (V, H)
    bias: Tensor  # (V,)

    @property
    def operands(self) -> tuple[Tensor, ...]:
        return (self.emit, self.words, self.bias)

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.words), len(self.emit)

    def with_operands(self, *operands: Tensor) -> FactoredEmission:
        return FactoredEmission(*operands)

    @property
    def norm(self) -> Tensor:
        """log Σ_x exp(logit) (Z,), cached."""
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

    def dense_pass(self) -> EmissionPass:
        return FactoredEmissions()

    def _compute_norm(self) -> Tensor:
        impl: Impl = "auto" if self.emit.dtype == torch.float32 else "torch"
        return row_norm(self.emit, self.words, self.bias, impl=impl, of_model=True)

    def _compute_table(self) -> Tensor:
        return torch.addmm(self.bias.unsqueeze(1), self.words, self.emit.T) - self.norm
