"""Transitions in two levels from tables of logits: the next block, then a state in it.

p(j | i) = p(m | i) p(j | m, i),    both a softmax of logits of their own
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from bighmm.model.support.base import States, Support
from bighmm.model.transitions.base import EVERY, Transitions, register_transitions
from bighmm.model.transitions.table import take_states
from bighmm.ops.gather import take_rows, take_square


@register_transitions
@dataclass(frozen=True, eq=False)
class TwoLevelTable(Transitions):
    """Logits choice (Z, M) and moves (Z, Z). Memory grows with Z²; states of block m are
    m·K … (m+1)·K-1."""

    family: ClassVar[str] = "two-level-table"
    capturable: ClassVar[bool] = True

    choice: Tensor
    moves: Tensor

    @property
    def num_states(self) -> int:
        return len(self.moves)

    @property
    def operands(self) -> tuple[Tensor, ...]:
        return (self.choice, self.moves)

    def with_operands(self, *operands: Tensor) -> TwoLevelTable:
        choice, moves = operands
        return TwoLevelTable(choice, moves)

    def log_probs(
        self, rows: States = EVERY, columns: States = EVERY, into: Tensor | None = None
    ) -> Tensor:
        moves, choice = take_states(self.moves, rows), take_states(self.choice, rows)
        blocks = moves.view(len(moves), self.choice.shape[1], -1).log_softmax(2)
        found = (blocks + choice.log_softmax(1).unsqueeze(2)).view(len(moves), -1)
        found = found[:, columns] if isinstance(columns, slice) else found.index_select(1, columns)
        return found if into is None else into.copy_(found)

    def tiles(self, support: Support, before: Tensor, after: Tensor) -> Tensor:
        blocks, number = support.partition, self.choice.shape[1]
        if blocks is None or blocks.num_blocks != number:
            raise ValueError(
                f"two-level transitions need a support with their {number} blocks, not a "
                f"{support.kind} one"
            )
        rows = support.valid_states(before)  # (N, K)
        parts = rows * number + blocks.block_of.index_select(0, after).unsqueeze(1)
        size = self.num_states // number
        moves = self.moves.view(-1, size).index_select(0, parts.view(-1)).log_softmax(1)
        chosen = self.choice.log_softmax(1).view(-1).index_select(0, parts.view(-1))
        return (moves + chosen.unsqueeze(1)).view(*rows.shape, size)

    def restrict(self, kept: Tensor) -> TwoLevelTable:
        """Over the states `kept` (Z',), of which every block has the same number."""
        return TwoLevelTable(take_rows(self.choice, kept), take_square(self.moves, kept, "auto"))
