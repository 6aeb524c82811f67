"""The plain parameterisation: one logit for every start, transition and emission cell."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bighmm.emissions import EmissionTable
from bighmm.hmm import HMM
from bighmm.kernels.gather import take_square
from bighmm.params import Parameterisation, register
from bighmm.params.emissions import normalise_cells
from bighmm.support import Blocked, Dense, Support
from bighmm.transitions import Table


@dataclass(frozen=True)
class ScalarOptions:
    """Tables of logits: Z start, Z² transition, and V·K emission parameters."""

    init_scale: float = 1.0
    """Standard deviation of the initial logits."""


@register("scalar", ScalarOptions)
class Scalar(Parameterisation):
    def __init__(self, options: ScalarOptions, support: Support, end: int | None) -> None:
        super().__init__()
        self.support, self.end = support, end
        states, scale = support.num_states, options.init_scale
        self.start = nn.Parameter(torch.randn(states) * scale)
        self.transition = nn.Parameter(torch.randn(states, states) * scale)
        self.emission = nn.Parameter(torch.randn(support.vocabulary_size, support.alive) * scale)

    def forward(self, kept: Tensor | None = None) -> HMM:
        self.support = self.support.to(self.start.device)
        if kept is None:
            return self._hmm(self.support, self.start, self.transition, self.emission)
        return self._hmm(
            self.support.restrict(kept),
            self.start.index_select(0, kept),
            take_square(self.transition, kept, "auto"),
            self._kept_cells(kept),
        )

    def _hmm(self, support: Support, start: Tensor, transition: Tensor, cells: Tensor) -> HMM:
        emission = normalise_cells(support, cells)
        transitions = Table(transition, rounded=self.operands == "bfloat16")
        return HMM(start.log_softmax(0), transitions, EmissionTable(emission), support, self.end)

    def _kept_cells(self, kept: Tensor) -> Tensor:
        if isinstance(self.support, Dense):
            return self.emission.index_select(1, kept)
        if isinstance(self.support, Blocked):
            within = kept.view(self.support.partition.num_blocks, -1) % self.support.alive
            return self.emission.gather(1, within.index_select(0, self.support.partition.block_of))
        return self.emission  # a free support keeps its K places and marks the dropped ones
