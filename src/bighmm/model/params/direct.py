"""Tables of logits restricted to the states that a step keeps."""

from __future__ import annotations

from torch import Tensor

from bighmm.model.support import Blocked, Dense, Support
from bighmm.ops.gather import take_square


def kept_transition(table: Tensor, kept: Tensor | None) -> Tensor:
    """Rows and columns `kept` (Z',) of logits (Z, Z)."""
    return table if kept is None else take_square(table, kept, "auto")


def kept_cells(support: Support, cells: Tensor, kept: Tensor | None) -> Tensor:
    """Of one logit per cell of the support (V, K) those of the states `kept`."""
    if kept is None:
        return cells
    if isinstance(support, Dense):
        return cells.index_select(1, kept)
    if isinstance(support, Blocked):
        within = kept.view(support.partition.num_blocks, -1) % support.alive
        return cells.gather(1, within.index_select(0, support.partition.block_of))
    return cells  # a free support keeps its K places and marks the dropped ones
