"""The plain parameterisation: one logit for every start, transition and emission cell."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bighmm.base.settings import check_range
from bighmm.model.emissions import EmissionTable
from bighmm.model.model import Model
from bighmm.model.options import ScalarOptions
from bighmm.model.params import Parameterisation, Tables, blocks_of, register, set_possible
from bighmm.model.support import Support
from bighmm.model.transitions import Table, TwoLevelTable


class Scalar(Parameterisation):
    def __init__(self, options: ScalarOptions, support: Support, end: int | None) -> None:
        super().__init__()
        self.support, self.end = support, end
        states, scale = support.num_states, options.init_scale
        check_range(scale, "init_scale")
        cells = (support.vocabulary_size, support.states_per_token)
        self.start = nn.Parameter(torch.randn(states) * scale)
        self.transition = nn.Parameter(torch.randn(states, states) * scale)
        self.emission = nn.Parameter(torch.randn(*cells) * scale)

    def forward(self, kept: Tensor | None = None) -> Model:
        support, transitions = self.support, self._transitions()
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

    @property
    def splits_states(self) -> bool:
        return True

    def _transitions(self) -> Table | TwoLevelTable:
        return Table(self.transition, rounded=self.rounds)


class TwoLevelScalar(Scalar):
    """With a table of logits (Z, M) for the next block, and logits of states within blocks."""

    def __init__(self, options: ScalarOptions, support: Support, end: int | None) -> None:
        super().__init__(options, support, end)
        blocks = blocks_of(support)
        self.choice = nn.Parameter(
            torch.randn(support.num_states, blocks.num_blocks) * options.init_scale
        )

    def set_tables(self, start: Tensor, transition: Tensor, emission: Tensor) -> None:
        super().set_tables(start, transition, emission)
        blocks = transition.view(len(transition), self.choice.shape[1], -1).logsumexp(2)
        set_possible(self.choice, blocks)

    def _transitions(self) -> TwoLevelTable:
        return TwoLevelTable(self.choice, self.transition)


@register("scalar", ScalarOptions)
def scalar(options: ScalarOptions, support: Support, end: int | None) -> Scalar:
    """The module of these options: `Scalar`, or with two levels `TwoLevelScalar`."""
    kind = TwoLevelScalar if options.transitions == "two-level" else Scalar
    return kind(options, support, end)
