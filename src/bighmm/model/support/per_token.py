"""Every token has its own list of states."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from bighmm.base.caching import outside_inference_mode
from bighmm.model.support.base import (
    Described,
    DescribedStates,
    States,
    Support,
    SupportRequest,
    register_support,
)
from bighmm.ops.cell_products import normalise_listed


@register_support
@dataclass(frozen=True, eq=False)
class PerToken(Support):
    """Every token has its own K states (the papers' 'uniform' constraint)."""

    kind: ClassVar[str] = "per-token"

    table: Tensor  # (V, K) long, -1 where a token has fewer
    num_states: int

    @staticmethod
    def random(vocabulary_size: int, num_states: int, states_per_token: int, seed: int) -> PerToken:
        """K states for every token, uniformly without replacement.

        A state that no token drew would have no emission distribution; it takes the place of a
        state that others share. Raises ValueError where the lists cannot cover all states.
        """
        size = states_per_token
        if not 1 <= size <= num_states or vocabulary_size * size < num_states:
            raise ValueError(
                f"{size} states per token cannot cover {num_states} states with "
                f"{vocabulary_size} tokens; use between "
                f"{-(-num_states // max(vocabulary_size, 1))} and {num_states}"
            )
        generator = torch.Generator().manual_seed(seed)
        rows = [
            torch.randperm(num_states, generator=generator)[:size] for _ in range(vocabulary_size)
        ]
        table = torch.stack(rows)
        counts = torch.bincount(table.view(-1), minlength=num_states)
        flat = table.view(-1)
        place = 0
        for state in torch.nonzero(counts == 0).squeeze(1).tolist():
            while counts[flat[place]] < 2:
                place += 1
            counts[flat[place]] -= 1
            flat[place] = state
            place += 1
        return PerToken(table, num_states)

    @property
    def states_per_token(self) -> int:
        return self.table.shape[1]

    @property
    def vocabulary_size(self) -> int:
        return len(self.table)

    @cached_property
    @outside_inference_mode()
    def cells(self) -> Tensor:
        """(Z, W) where the cells of each state are in the table laid flat, padded with -1."""
        flat = self.table.reshape(-1)
        order = flat.argsort(stable=True)[int((flat < 0).sum()) :]
        states = flat[order]
        counts = torch.bincount(states, minlength=self.num_states)
        first = counts.cumsum(0) - counts
        within = torch.arange(len(order), device=flat.device) - first[states]
        cells = torch.full((self.num_states, int(counts.max())), -1, device=flat.device)
        cells[states, within] = order
        return cells

    def states(self, tokens: Tensor) -> Tensor:
        found = self.table.index_select(0, tokens.reshape(-1))
        return found.view(*tokens.shape, self.states_per_token)

    def emission_rows(self, emission: Tensor, states: States) -> Tensor:
        cells = self.cells[states]
        missing = cells < 0
        values = emission.reshape(-1).index_select(0, cells.clamp(min=0).view(-1))
        values = values.view(cells.shape).masked_fill(missing, -torch.inf)
        tokens = (cells // self.states_per_token).masked_fill(missing, self.vocabulary_size)
        rows = emission.new_full((len(cells), self.vocabulary_size + 1), -torch.inf)
        return rows.scatter(1, tokens, values)[:, :-1]

    def normalise(self, cells: Tensor) -> Tensor:
        return normalise_listed(cells, self.table, self.cells)

    def restrict(self, kept: Tensor) -> PerToken:
        renumbered = torch.full((self.num_states + 1,), -1, device=kept.device)
        renumbered[kept] = torch.arange(len(kept), device=kept.device)
        # -1 finds the last entry, which is -1. Cells stay where they were.
        part = PerToken(renumbered[self.table], len(kept))
        part.__dict__["cells"] = self.cells.index_select(0, kept)
        return part

    def restrict_cells(self, cells: Tensor, kept: Tensor) -> Tensor:
        return cells  # the restricted table keeps its K places and marks the dropped ones

    def to(self, device: torch.device) -> PerToken:
        if self.table.device == device:
            return self
        return PerToken(self.table.to(device), self.num_states)

    def describe(self) -> Described:
        return Described({"kind": self.kind, "states": self.num_states}, {"states": self.table})

    @classmethod
    def make(cls, request: SupportRequest) -> PerToken:
        return PerToken.random(
            request.vocabulary_size, request.num_states, request.states_per_token, request.seed
        )

    @classmethod
    def restore(
        cls, settings: dict[str, Any], tensors: dict[str, Tensor], vocabulary_size: int
    ) -> PerToken:
        states, (table,) = DescribedStates.read(settings, tensors, "states")
        if table.dim() != 2 or len(table) != vocabulary_size or not table.numel():
            raise ValueError(
                f"the lists of states are of shape {list(table.shape)}, not one for each of "
                f"{vocabulary_size} tokens"
            )
        if int(table.min()) < -1 or int(table.max()) >= states or int(table.amax(1).min()) < 0:
            raise ValueError(
                f"every token needs states from 0 to {states - 1}, or -1 where it has fewer"
            )
        return PerToken(table, states)
