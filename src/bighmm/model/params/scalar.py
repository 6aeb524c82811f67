"""The plain parameterisation: one logit for every start, transition and emission cell."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bighmm.model.emissions import EmissionTable
from bighmm.model.model import Model
from bighmm.model.options import ScalarOptions
from bighmm.model.params import Parameterisation, Tables, register
from bighmm.model.support import Support
from bighmm.model.transitions import Table


@register("scalar", ScalarOptions)
class Scalar(Parameterisation):
    def __init__(self, options: ScalarOptions, support: Support, end: int | None) -> None:
        super().__init__()
        self.support, self.end = support, end
        states, scale = support.num_states, options.init_scale
        cells = (support.vocabulary_size, support.states_per_token)
        self.start = nn.Parameter(torch.randn(states) * scale)
        self.transition = nn.Parameter(torch.randn(states, states) * scale)
        self.emission = nn.Parameter(torch.randn(*cells) * scale)

    def forward(self, kept: Tensor | None = None) -> Model:
        support, transitions = self.support, Table(self.transition, rounded=self.rounds)
        start: Tensor = self.start
        cells: Tensor = self.emission
        if kept is not None:
            start, transitions = start.index_select(0, kept), transitions.restrict(kept)
            cells = support.restrict_cells(cells, kept)
            support = support.restrict(kept)
        emissions = EmissionTable(support.normalise(cells))
        return Model(start.log_softmax(0), transitions, emissions, support, self.end)

    def tables(self) -> Tables:
        return Tables(self.start, self.transition, self.emission)
