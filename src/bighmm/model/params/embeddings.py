"""Embeddings of states, for each role that a state has: to be left, entered, emitted from."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from bighmm.model.networks.state_networks import MLP, apply
from bighmm.model.support import Support
from bighmm.ops.gather import take_rows
from bighmm.ops.impl import Impl


class StateEmbedding(nn.Module):
    """Vectors of the states for every role, of all states or of those `kept` (Z',).

    present (S,): the blocks that `kept` are states of, if not of all; each has the same number.
    sparse: whether the gradient of a table of which rows are taken is sparse (see `take_rows`).
    """

    def own_vectors(self) -> list[nn.Parameter]:
        """The tables (Z, H) that belong to states alone."""
        return []


class SharedEmbedding(StateEmbedding):
    """One embedding (Z, H), the same for every role."""

    def __init__(self, support: Support, roles: list[str], width: int, scale: float) -> None:
        super().__init__()
        self.roles = roles
        self.table = _random(support.num_states, width, scale)

    def forward(
        self,
        kept: Tensor | None,
        impl: Impl = "torch",
        present: Tensor | None = None,
        sparse: bool = False,
    ) -> dict[str, Tensor]:
        chosen: Tensor = self.table
        if kept is not None:
            chosen = take_rows(self.table, kept, impl, sparse=sparse, rounded=True)
        return dict.fromkeys(self.roles, chosen)

    def own_vectors(self) -> list[nn.Parameter]:
        return [self.table]


class SplitEmbedding(StateEmbedding):
    """An embedding (Z, H) for every role."""

    def __init__(self, support: Support, roles: list[str], width: int, scale: float) -> None:
        super().__init__()
        self.tables = nn.ParameterDict(
            {role: _random(support.num_states, width, scale) for role in roles}
        )

    def forward(
        self,
        kept: Tensor | None,
        impl: Impl = "torch",
        present: Tensor | None = None,
        sparse: bool = False,
    ) -> dict[str, Tensor]:
        return {
            role: table
            if kept is None
            else take_rows(table, kept, impl, sparse=sparse, rounded=True)
            for role, table in self.tables.items()
        }

    def own_vectors(self) -> list[nn.Parameter]:
        return list(self.tables.values())


class BlockEmbedding(StateEmbedding):
    """[block, state] halves (M, H/2) and (Z, H/2), composed by one network per role."""

    def __init__(self, support: Support, roles: list[str], width: int, scale: float) -> None:
        super().__init__()
        blocks = support.partition
        if blocks is None or width % 2:
            raise ValueError(
                f"factored embeddings need a blocked support and an even width, not "
                f"{support.kind} and {width}"
            )
        self.block = _random(blocks.num_blocks, width // 2, scale)
        self.own = _random(support.num_states, width // 2, scale)
        self.compose = nn.ModuleDict({role: MLP(width) for role in roles})

    def forward(
        self,
        kept: Tensor | None,
        impl: Impl = "torch",
        present: Tensor | None = None,
        sparse: bool = False,
    ) -> dict[str, Tensor]:
        own = self.own if kept is None else take_rows(self.own, kept, impl, sparse=sparse)
        blocks = self.block if present is None else self.block.index_select(0, present)
        per_block = len(own) // len(blocks)
        block = blocks.unsqueeze(1).expand(-1, per_block, -1).reshape(len(own), -1)
        both = torch.cat([block, own], dim=1)
        found = apply(self.compose.values(), [both] * len(self.compose), impl)
        return dict(zip(self.compose, found, strict=True))


def _random(rows: int, width: int, scale: float) -> nn.Parameter:
    """A table of random vectors, without a second one while it is made."""
    return nn.Parameter(torch.randn(rows, width).mul_(scale))


KINDS: dict[str, Callable[..., StateEmbedding]] = {
    "independent": SharedEmbedding,
    "split": SplitEmbedding,
    "factored": BlockEmbedding,
}
