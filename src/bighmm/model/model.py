"""Model: the distributions of an HMM as one value, without any question about them.

Shape letters, the same everywhere in this library:

    B batch        Z states                            V vocabulary
    T time         K states per token (alive at t)     H width
    M blocks
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bighmm.model.emissions import Emissions, EmissionTable
from bighmm.model.support import Support
from bighmm.model.transitions import Transitions


@dataclass(frozen=True, eq=False)
class Model:
    """p(x, z) = p(z_1) p(x_1 | z_1) Π_t p(z_t | z_{t-1}) p(x_t | z_t).

    With an `end` mark and `reset`, the state after the mark is drawn from the start distribution
    again, so that texts which follow each other are independent.

    Raises ValueError for tables of other shapes than the support has.
    """

    start: Tensor  # (Z,) log p(z_1)
    transitions: Transitions
    emissions: Emissions  # of the K states of each token, in the support's order; or their table
    support: Support
    end: int | None = None
    reset: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.emissions, Tensor):
            object.__setattr__(self, "emissions", EmissionTable(self.emissions))
        states, support = self.support.num_states, self.support
        if self.start.shape != (states,) or self.transitions.num_states != states:
            raise ValueError(
                f"start has the shape {tuple(self.start.shape)} and the transitions have "
                f"{self.transitions.num_states} states, but the support has {states}"
            )
        found = self.emissions.shape
        if found not in (None, (support.vocabulary_size, support.states_per_token)):
            raise ValueError(
                f"the table of emissions has the shape {found}, but the support has "
                f"{support.vocabulary_size} tokens with {support.states_per_token} states each"
            )

    @property
    def emission(self) -> Tensor:
        """log p(x | z) (V, K)."""
        return self.emissions.table

    @property
    def num_states(self) -> int:
        return self.support.num_states

    @property
    def vocabulary_size(self) -> int:
        return self.support.vocabulary_size

    @property
    def operands(self) -> tuple[Tensor, ...]:
        """All tensors that the distributions are made of."""
        return (self.start, *self.transitions.operands, *self.emissions.operands)
