"""The parameterisation of a mixture of HMMs, which is one HMM whose states are those of all.

    p(x) = Σ_c weight_c p_c(x)

Its start distribution is weight_c times that of HMM c, and no transition leads from one HMM to
another. Every block has the states of all HMMs (see `transitions.mixture`). After a start the
posterior over states is also one over HMMs. In the convention "reset" each sentence is drawn from
one of them, with "carry" the whole text.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from bighmm.base.settings import Positive, fill
from bighmm.model.calibration import UNCALIBRATED, Calibration
from bighmm.model.emissions import EmissionTable
from bighmm.model.model import Model
from bighmm.model.params import Parameterisation, find, register
from bighmm.model.support import Blocked, Dense, Support
from bighmm.model.transitions.mixture import Mixed


@dataclass(frozen=True)
class Component:
    """One of the HMMs of a mixture."""

    parameterisation: str
    options: Any  # a dictionary, as files have it
    states: Positive
    calibration: Calibration = UNCALIBRATED


@dataclass(frozen=True)
class MixtureOptions:
    """Several HMMs with the same words and blocks."""

    components: list[dict[str, Any]] = field(default_factory=list)
    """The parameterisation, options, states and calibration of each."""


@register("mixture", MixtureOptions)
class Mixture(Parameterisation):
    def __init__(self, options: MixtureOptions, support: Support, end: int | None) -> None:
        super().__init__()
        self.support, self.end = support, end
        if not options.components:
            raise ValueError("a mixture is made of trained models, by `bighmm mix`")
        parts, self.own = [], list[Calibration]()  # the calibration of each part
        for number, given in enumerate(options.components):
            asked = fill(Component, given, f"component {number} of the mixture")
            kind = find(asked.parameterisation)
            own: Any = fill(kind.options, asked.options, f"the options of component {number}")
            parts.append(kind.make(own, support_of(support, asked.states), end))
            self.own.append(asked.calibration)
        total = sum(part.support.num_states for part in parts)
        if total != support.num_states:
            raise ValueError(f"the components have {total} states, not {support.num_states}")
        self.parts = nn.ModuleList(parts)
        self.weights = nn.Parameter(torch.zeros(len(parts)))  # logits

    @property
    def calibrates(self) -> tuple[str, ...]:  # type: ignore[override]
        """What all parts calibrate; a factor of the mixture is one of each of them."""
        found: list[tuple[str, ...]] = [part.calibrates for part in self.parts]  # type: ignore
        return tuple(name for name in found[0] if all(name in other for other in found))

    @property
    def log_zeros(self) -> bool:
        return any(part.log_zeros for part in self.parts)

    def forward(self, kept: Tensor | None = None) -> Model:
        """The model over all states; a mixture is not trained with state dropout."""
        if kept is not None:
            raise ValueError("a mixture has no state dropout; train its components on their own")
        models = []
        for part, own in zip(self.parts, self.own, strict=True):
            assert isinstance(part, Parameterisation)
            part.matmul_dtype = self.matmul_dtype
            part.calibration = own.times(self.calibration)
            models.append(part())
        blocks = 1 if self.support.partition is None else self.support.partition.num_blocks
        transitions = Mixed(tuple(model.transitions for model in models), blocks)
        weights = self.weights.log_softmax(0)
        start = transitions.joined([w + m.start for w, m in zip(weights, models, strict=True)])
        emissions = EmissionTable(torch.cat([model.emission for model in models], dim=1))
        return Model(start, transitions, emissions, self.support, self.end)


def support_of(support: Support, states: int) -> Support:
    """The same blocks with other states, or all states for all words."""
    if support.partition is not None:
        return Blocked.of(support.partition.block_of, states)
    if not support.is_dense:
        raise ValueError(f"models of a {support.kind} support cannot be mixed")
    return Dense(states, support.vocabulary_size)
