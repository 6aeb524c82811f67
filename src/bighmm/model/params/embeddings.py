"""Embeddings of states, for each role that a state has: to be left, entered, emitted from."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bighmm.model.networks.state_networks import MLP, apply
from bighmm.model.support import Blocked, Support
from bighmm.ops import Impl
from bighmm.ops.gather import take_rows


class SharedEmbedding(nn.Module):
    """One embedding (Z, H), the same for every role."""

    def __init__(self, support: Support, roles: list[str], width: int, scale: float) -> None:
        super().__init__()
        self.roles = roles
        self.table = nn.Parameter(torch.randn(support.num_states, width) * scale)

    def forward(self, kept: Tensor | None, impl: Impl = "torch") -> dict[str, Tensor]:
        chosen = self.table if kept is None else take_rows(self.table, kept, impl)
        return dict.fromkeys(self.roles, chosen)


class SplitEmbedding(nn.Module):
    """An embedding (Z, H) for every role."""

    def __init__(self, support: Support, roles: list[str], width: int, scale: float) -> None:
        super().__init__()
        self.tables = nn.ParameterDict(
            {role: nn.Parameter(torch.randn(support.num_states, width) * scale) for role in roles}
        )

    def forward(self, kept: Tensor | None, impl: Impl = "torch") -> dict[str, Tensor]:
        return {
            role: table if kept is None else take_rows(table, kept, impl)
            for role, table in self.tables.items()
        }


class BlockEmbedding(nn.Module):
    """[block, state] halves (M, H/2) and (Z, H/2), composed by one network per role."""

    def __init__(self, support: Support, roles: list[str], width: int, scale: float) -> None:
        super().__init__()
        if not isinstance(support, Blocked) or width % 2:
            raise ValueError(
                f"factored embeddings need a blocked support and an even width, not "
                f"{type(support).__name__.lower()} and {width}"
            )
        self.block = nn.Parameter(torch.randn(support.partition.num_blocks, width // 2) * scale)
        self.own = nn.Parameter(torch.randn(support.num_states, width // 2) * scale)
        self.compose = nn.ModuleDict({role: MLP(width) for role in roles})

    def forward(self, kept: Tensor | None, impl: Impl = "torch") -> dict[str, Tensor]:
        own = self.own if kept is None else take_rows(self.own, kept, impl)
        per_block = len(own) // len(self.block)
        block = self.block.unsqueeze(1).expand(-1, per_block, -1).reshape(len(own), -1)
        both = torch.cat([block, own], dim=1)
        found = apply(self.compose.values(), [both] * len(self.compose), impl)
        return dict(zip(self.compose, found, strict=True))


KINDS = {"independent": SharedEmbedding, "split": SplitEmbedding, "factored": BlockEmbedding}
