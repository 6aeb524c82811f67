"""The plain parameterisation: one logit for every start, transition and emission cell."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bighmm.hmm import HMM
from bighmm.model.emissions import EmissionTable
from bighmm.model.options import ScalarOptions
from bighmm.model.params import Parameterisation, register
from bighmm.model.params.direct import kept_cells, kept_transition
from bighmm.model.params.emissions import normalise_cells
from bighmm.model.support import Support
from bighmm.model.transitions import Table


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
        support = self.support if kept is None else self.support.restrict(kept)
        start = self.start if kept is None else self.start.index_select(0, kept)
        transition = kept_transition(self.transition, kept)
        emission = normalise_cells(support, kept_cells(self.support, self.emission, kept))
        return HMM(
            start.log_softmax(0),
            Table(transition, rounded=self.operands == "bfloat16"),
            EmissionTable(emission),
            support,
            self.end,
        )
