"""A transition family, a support and a parameterisation that the package does not know.

Nothing in `src/` mentions them. They implement what the protocols require and no more.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bighmm.model.emissions import EmissionTable
from bighmm.model.model import Model
from bighmm.model.params import Parameterisation, register
from bighmm.model.support import Described, Support, register_support
from bighmm.model.transitions import EVERY, Transitions, register_transitions


@register_transitions
@dataclass(frozen=True, eq=False)
class Sticky(Transitions):
    """p(j | i) = ε / Z + (1 − ε) [i = j], with ε = sigmoid(logit)."""

    family = "sticky"

    logit: Tensor  # ()
    states: Tensor  # (Z,) any numbers; only their count matters

    @property
    def num_states(self):
        return len(self.states)

    @property
    def operands(self):
        return (self.logit, self.states)

    def with_operands(self, *operands):
        return Sticky(*operands)

    def log_probs(self, rows=EVERY, columns=EVERY, into=None):
        every = torch.arange(self.num_states, device=self.states.device)
        same = every[rows].unsqueeze(1) == every[columns]
        away = self.logit.sigmoid() / self.num_states
        found = torch.where(same, away + torch.sigmoid(-self.logit), away).log()
        return found if into is None else into.copy_(found)


@register_support
@dataclass(frozen=True)
class Parity(Support):
    """State z emits token x if z + x is even: every second state, in their order."""

    kind = "parity"

    num_states: int
    vocabulary_size: int

    @property
    def states_per_token(self):
        return self.num_states // 2

    def states(self, tokens):
        within = 2 * torch.arange(self.states_per_token, device=tokens.device)
        return tokens.unsqueeze(-1) % 2 + within

    def to(self, device):
        return self

    @classmethod
    def make(cls, request):
        return cls(request.num_states, request.vocabulary_size)

    def describe(self):
        return Described({"kind": self.kind, "states": self.num_states}, {})

    @classmethod
    def restore(cls, settings, tensors, vocabulary_size):
        return cls(settings["states"], vocabulary_size)


@dataclass(frozen=True)
class StickyOptions:
    """Sticky transitions, and tables for the rest."""

    stay: float = 1.0
    """Logit of staying in a state at first."""


@register("sticky", StickyOptions)
class StickyParameters(Parameterisation):
    def __init__(self, options, support, end):
        super().__init__()
        self.support, self.end = support, end
        self.logit = nn.Parameter(torch.tensor(-options.stay))
        self.start = nn.Parameter(torch.randn(support.num_states))
        self.emission = nn.Parameter(torch.randn(support.vocabulary_size, support.states_per_token))

    def forward(self, kept=None):
        transitions = Sticky(self.logit, self.start.detach())
        if kept is None:
            emissions = EmissionTable(self.support.normalise(self.emission))
            return Model(self.start.log_softmax(0), transitions, emissions, self.support, self.end)
        support = self.support.restrict(kept)
        cells = self.support.restrict_cells(self.emission, kept)
        return Model(
            self.start[kept].log_softmax(0),
            transitions.restrict(kept),
            EmissionTable(support.normalise(cells)),
            support,
            self.end,
        )
