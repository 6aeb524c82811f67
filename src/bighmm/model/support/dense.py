"""Every state may emit every token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from bighmm.model.emissions import Emissions
from bighmm.model.support.base import (
    Described,
    DescribedStates,
    States,
    Support,
    SupportRequest,
    register_support,
)
from bighmm.ops.cell_products import normalise_columns
from bighmm.ops.impl import Impl
from bighmm.ops.log_matmul import log_product
from bighmm.ops.state_dropout import draw_kept


@register_support
@dataclass(frozen=True)
class Dense(Support):
    """Every state may emit every token: K = Z."""

    kind: ClassVar[str] = "dense"
    is_dense: ClassVar[bool] = True
    fixed_dropout: ClassVar[bool] = True

    num_states: int
    vocabulary_size: int

    @property
    def states_per_token(self) -> int:
        return self.num_states

    def with_states(self, num_states: int) -> Dense:
        return Dense(num_states, self.vocabulary_size)

    def states(self, tokens: Tensor) -> Tensor:
        every = torch.arange(self.num_states, device=tokens.device)
        return every.expand((*tokens.shape, self.num_states))

    def valid_states(self, tokens: Tensor) -> Tensor:
        return self.states(tokens)

    def gather(self, table: Tensor, tokens: Tensor) -> Tensor:
        return table.unsqueeze(0).expand(len(tokens), *table.shape)

    def group(self, token: int, device: torch.device) -> tuple[int, States]:
        return 0, slice(0, self.num_states)

    def place_of(self, tokens: Tensor, states: Tensor) -> Tensor:
        return states

    def emission_rows(self, emission: Tensor, states: States) -> Tensor:
        if isinstance(states, slice):
            return emission[:, states].T
        return emission.index_select(1, states).T

    def token_log_probs(
        self, emissions: Emissions, log_states: Tensor, tokens: Tensor | None = None
    ) -> Tensor:
        if tokens is None:
            table, probs = emissions.table, emissions.probs()
        else:
            table = emissions.of(tokens)
            probs = table.exp()
        return log_product(
            log_states,
            lambda weights: weights @ probs.T,
            lambda rows, columns: log_states[rows] + table[columns],
        )

    def normalise(self, cells: Tensor) -> Tensor:
        return normalise_columns(cells)

    def factored_emission(
        self, emit: Tensor, words: Tensor, bias: Tensor, impl: Impl = "torch"
    ) -> Tensor:
        return normalise_columns(torch.addmm(bias.unsqueeze(1), words, emit.T))

    def sum_by_state(self, cells: Tensor) -> Tensor:
        return cells.sum(0)

    def draw_kept(self, rate: float, key: Tensor) -> Tensor:
        return draw_kept(1, self.num_states, rate, key)

    def restrict(self, kept: Tensor) -> Dense:
        return Dense(len(kept), self.vocabulary_size)

    def restrict_cells(self, cells: Tensor, kept: Tensor) -> Tensor:
        return cells.index_select(1, kept)

    def to(self, device: torch.device) -> Dense:
        return self

    def label_key(self) -> dict[str, Any]:
        return {"kind": self.kind, "states": self.num_states}

    def describe(self) -> Described:
        return Described({"kind": self.kind, "states": self.num_states}, {})

    @classmethod
    def make(cls, request: SupportRequest) -> Dense:
        return Dense(request.num_states, request.vocabulary_size)

    @classmethod
    def restore(
        cls, settings: dict[str, Any], tensors: dict[str, Tensor], vocabulary_size: int
    ) -> Dense:
        states, _ = DescribedStates.read(settings, tensors)
        return Dense(states, vocabulary_size)
