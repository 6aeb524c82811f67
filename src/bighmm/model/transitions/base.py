"""The protocol of transition families, with a default for everything that follows from
`log_probs`."""

from __future__ import annotations

import copy
import dataclasses
import typing
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from bighmm.base.caching import cached_object, needs_gradient
from bighmm.base.registry import Registry
from bighmm.base.settings import as_type, shown
from bighmm.model.support.base import States, Support
from bighmm.model.transitions.product import Product, TiledProduct
from bighmm.ops import memory
from bighmm.ops.dense_chain.passes import TransitionPass
from bighmm.ops.drawing import draw
from bighmm.ops.windows import Windows

EVERY = slice(None)

# log p (B,) of windows in blocks, and log_alpha (B, K) at their end, from the windows, the start
# distribution (Z,) and the emissions of their words (B, T, K); differentiable in all tensors.
# None for windows that it cannot do.
BlockedChain = Callable[[Windows, Tensor, Tensor], tuple[Tensor, Tensor] | None]


class Transitions(Protocol):
    """p(j | i) for all pairs of states.

    Required are `family`, `num_states`, `operands`, `with_operands` and `log_probs`, which must be
    differentiable in the operands. The rest has defaults that follow from them, which a family
    replaces where it can do better.
    """

    family: ClassVar[str]
    """Its name in files."""
    capturable: ClassVar[bool] = False
    """Tiles are made without host synchronisation, so a training step can be captured."""

    if TYPE_CHECKING:  # attributes, which may be fields of a dataclass

        @property
        def num_states(self) -> int: ...
        @property
        def operands(self) -> tuple[Tensor, ...]:
            """The tensors that the probabilities are made of."""
            ...

    def with_operands(self, *operands: Tensor) -> Transitions:
        """The same family and settings, made of other tensors."""
        ...

    def log_probs(
        self, rows: States = EVERY, columns: States = EVERY, into: Tensor | None = None
    ) -> Tensor:
        """log p(j | i) (R, C) from the states `rows` to `columns`, written `into` where given."""
        ...

    def between(self, before: Tensor, after: Tensor) -> Tensor:
        """log p(after | before) (N,) for pairs of states (N,)."""
        return self.log_probs(before).gather(1, after.unsqueeze(1)).squeeze(1)

    def tiles(self, support: Support, before: Tensor, after: Tensor) -> Tensor:
        """log p(j | i) (N, K, K) for states i of tokens `before` (N,) and j of `after` (N,)."""
        rows, columns = support.valid_states(before), support.valid_states(after)
        count, size = rows.shape
        moves = self.log_probs(rows.reshape(-1)).view(count, size, -1)
        return moves.gather(2, columns.unsqueeze(1).expand(count, size, size))

    def next_states(
        self, support: Support, tokens: Tensor, log_alpha: Tensor, blocks: Tensor | None = None
    ) -> Tensor:
        """log Σ_k exp(log_alpha_k) p(j | z_k) (B, Z), over the K states of each token (B,).

        log_alpha (B, K). With `blocks` (m,) of the support, of the states of these alone: (B, m·K).
        """
        states = support.valid_states(tokens)
        batch, size = states.shape
        columns: States = EVERY
        count = self.num_states
        if blocks is not None:
            within = torch.arange(support.states_per_token, device=blocks.device)
            columns = (blocks.unsqueeze(1) * len(within) + within).view(-1)
            count = len(columns)
        result = log_alpha.new_empty(batch, count)
        for part in memory.pieces(batch, size * count, log_alpha.device):
            moves = self.log_probs(states[part].reshape(-1), columns)
            weighted = moves.view(-1, size, count).add_(log_alpha[part].unsqueeze(2))
            result[part] = weighted.logsumexp(1)
        return result

    def next_blocks(self, support: Support, tokens: Tensor, log_alpha: Tensor) -> Tensor | None:
        """log p(the next state is in block m of the support) (B, M), given as for `next_states`.

        None unless this is far cheaper than `next_states` and the support has the blocks of the
        transitions.
        """
        return None

    def draw(
        self, states: Tensor, fresh: Tensor, start: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        """One state (N,) from p(j | i) for each of the states i (N,).

        In `fresh` rows (N,) bool it is drawn from the `start` distribution, log p(j) (Z,).
        """
        chunk = memory.at_once(self.num_states, states.device)
        drawn = []
        for some, anew in zip(states.split(chunk), fresh.split(chunk), strict=True):
            log_probs = torch.where(anew.unsqueeze(1), start, self.log_probs(some))
            drawn.append(draw(log_probs, generator))
        return torch.cat(drawn)

    def product(self, before: States = EVERY, after: States = EVERY) -> Product:
        """Products with the part of the matrix from the states `before` to `after`.

        Made without gradient. The whole matrix is cached where it is small and does not change.
        """
        if not (_is_every(before) and _is_every(after)):
            return TiledProduct(self, before, after, memory.TILE)
        if not self.caches_matrix:
            return TiledProduct(self, EVERY, EVERY, memory.WORKING)

        def whole() -> Product:
            # A copy, so that the transitions and their cached product do not refer to each other.
            return TiledProduct(copy.copy(self), EVERY, EVERY, memory.WORKING)

        return cached_object(self, "_product", whole)

    @property
    def grain(self) -> int:
        """Columns of `log_probs` are computed in groups of so many neighbouring states."""
        return 1

    @property
    def caches_matrix(self) -> bool:
        """Whether `product()` keeps the matrix for the next call."""
        return self.num_states**2 <= memory.CACHED and not needs_gradient(self.operands)

    def pull_back(
        self, rows: slice, counts: Tensor, probs: Tensor, grads: Sequence[Tensor]
    ) -> None:
        """Add to `grads`, one per operand, the gradient of Σ counts · log p over some rows.

        counts (R, Z) are expected moves from the states `rows`, probs (R, Z) is p(j | i) there.
        The normaliser is part of the gradient.
        """
        operands = tuple(x.detach().requires_grad_() for x in self.operands)
        with torch.enable_grad():
            log_probs = self.with_operands(*operands).log_probs(rows)
        found = torch.autograd.grad(log_probs, operands, counts, allow_unused=True)
        for total, part in zip(grads, found, strict=True):
            if part is not None:
                total += part

    def restrict(self, kept: Tensor) -> Transitions:
        """The distribution over the states `kept` (Z',) alone, renormalised; differentiable."""
        from bighmm.model.transitions.table import Table

        return Table(self.log_probs(kept, kept))

    @property
    def norm(self) -> Tensor | None:
        """c (Z,), where log p(j | i) is computed as s_ij − c_i; None where it is not."""
        return None

    def precompute(self) -> None:
        """Compute and cache what every question needs, such as a normaliser."""
        return None

    def blocked_chain(self, support: Support, kernels: bool) -> BlockedChain | None:
        """A fused likelihood of windows in the blocks of a support; None if there is none.

        kernels: with Triton; otherwise on a CPU.
        """
        return None

    def dense_pass(self) -> TransitionPass | None:
        """What `ops.dense_chain` needs of the family on a GPU; None if it cannot be used."""
        return None

    def settings(self) -> dict[str, Any]:
        """What a file says of it beside its operands: arguments of the constructor."""
        return {}

    def to(self, device: torch.device, dtype: torch.dtype) -> Transitions:
        return self.with_operands(*(t.to(device, dtype) for t in self.operands))

    def detach(self) -> Transitions:
        """The same, with operands that ask for no gradient."""
        return self.with_operands(*(t.detach() for t in self.operands))


FamilyT = TypeVar("FamilyT", bound=type[Transitions])
REGISTRY = Registry[Callable[..., Transitions]]("bighmm.model.transitions", "transition family")


def register_transitions(cls: FamilyT) -> FamilyT:
    """Announce a family under the name that files have for it, its `family`."""
    REGISTRY.add(cls.family, cls)
    return cls


def restore_transitions(
    family: str, operands: Sequence[Tensor], settings: dict[str, Any]
) -> Transitions:
    """Transitions of a registered family; ValueError for an unknown one, or an unknown setting."""
    made = REGISTRY.find(family)
    if dataclasses.is_dataclass(made):
        hints = typing.get_type_hints(made)
        for name, value in settings.items():
            if name not in hints:
                raise ValueError(f"{family} transitions have no setting {shown(name)}")
            as_type(value, hints[name], f"the {family} transitions", name)
    return made(*operands, **settings)


def _is_every(states: States) -> bool:
    return isinstance(states, slice) and states == EVERY
