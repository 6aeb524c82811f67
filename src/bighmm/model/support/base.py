"""The protocol of supports, with a default for everything that follows from `states`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from bighmm.base.registry import Registry
from bighmm.base.settings import Positive, fill, shown
from bighmm.model.emissions import Emissions
from bighmm.ops import memory
from bighmm.ops.cell_products import cell_products, normalise_scattered
from bighmm.ops.impl import Impl
from bighmm.ops.partition import Partition
from bighmm.ops.present_blocks import Present
from bighmm.ops.state_dropout import draw_kept

States = Tensor | slice  # ids of states; those that follow each other are better given as a slice


class Described(NamedTuple):
    """A support as a file has it."""

    settings: dict[str, Any]  # JSON values, with at least "kind" and "states"
    tensors: dict[str, Tensor]


@dataclass(frozen=True)
class SupportRequest:
    """What a support may be made from when a model is set up."""

    num_states: int
    vocabulary_size: int
    states_per_token: int
    seed: int
    word_classes: Callable[[], np.ndarray]  # the class of every token (V,), of Brown clustering


class Support(Protocol):
    """The relation 'state z may emit token x', with K states for every token.

    Required are `kind`, the three numbers, `states`, `to`, `make`, `describe` and `restore`. The
    rest has defaults that follow from them, which a kind replaces where it can do better.
    """

    kind: ClassVar[str]
    """Its name in files."""
    is_dense: ClassVar[bool] = False
    """Every state may emit every token: K = Z, in the order of the states."""
    fixed_dropout: ClassVar[bool] = False
    """State dropout keeps the same number of states at every step, so that steps have one shape."""

    if TYPE_CHECKING:  # attributes, which may be fields of a dataclass

        @property
        def num_states(self) -> int: ...
        @property
        def vocabulary_size(self) -> int: ...
        @property
        def states_per_token(self) -> int:
            """K, the number of states that can be alive once a token is known."""
            ...

    def states(self, tokens: Tensor) -> Tensor:
        """Ids (..., K) of the states that may emit `tokens` (...); -1 fills a shorter list."""
        ...

    def to(self, device: torch.device) -> Support: ...

    def describe(self) -> Described:
        """What a file says of it; `restore` is the inverse."""
        ...

    @classmethod
    def make(cls, request: SupportRequest) -> Support:
        """A support for a new model; ValueError for what cannot be met."""
        ...

    @classmethod
    def restore(
        cls, settings: dict[str, Any], tensors: dict[str, Tensor], vocabulary_size: int
    ) -> Support: ...

    @property
    def partition(self) -> Partition | None:
        """The blocks of the vocabulary, where the states of block m are m·K … (m+1)·K-1."""
        return None

    def with_states(self, num_states: int) -> Support:
        """The same relation with so many states, of which those of one here follow each other.

        Raises ValueError where it cannot have so many.
        """
        if num_states != self.num_states:
            raise ValueError(
                f"a {self.kind} support of {self.num_states:,} states cannot get {num_states:,}; "
                "use as many"
            )
        return self

    def valid_states(self, tokens: Tensor) -> Tensor:
        """Like `states`, with missing entries replaced by arbitrary valid ids.

        These differ from place to place: a gradient that adds to one row from everywhere is slow.
        """
        ids = self.states(tokens)
        others = torch.arange(self.states_per_token, device=ids.device) % self.num_states
        return torch.where(ids >= 0, ids, others)

    def states_among(self, tokens: Tensor, kept: Tensor | None) -> Tensor:
        """`states` of tokens (B,) where those of this support are called `kept` (Z,): (B, K)."""
        states = self.states(tokens)
        if kept is None:
            return states
        return torch.where(states >= 0, kept[states.clamp(min=0)], -1)

    def gather(self, table: Tensor, tokens: Tensor) -> Tensor:
        """Rows of `table` (Z, ...) for the states of `tokens` (N,): (N, K, ...).

        Where `states` is -1 the row is that of another state: the emission there is zero.
        """
        ids = self.valid_states(tokens)
        return table.index_select(0, ids.view(-1)).view(*ids.shape, *table.shape[1:])

    def group(self, token: int, device: torch.device) -> tuple[int, States]:
        """The states of a token, and a number that tokens with the same states share."""
        tokens = torch.tensor([token], device=device)
        return token, self.valid_states(tokens).squeeze(0)

    def place_of(self, tokens: Tensor, states: Tensor) -> Tensor:
        """Where each state (N,) stands among the K states of its token (N,); -1 if it does not."""
        same = (self.states(tokens) == states.unsqueeze(1)) & (states >= 0).unsqueeze(1)
        return torch.where(same.any(1), same.to(torch.uint8).argmax(1), -1)

    def emission_rows(self, emission: Tensor, states: States) -> Tensor:
        """log p(x | z) (N, V) over the whole vocabulary for `states` (N,), from emission (V, K)."""
        every = torch.arange(self.num_states, device=emission.device)[states]
        of_token = self.states(self._every_token(emission.device))  # (V, K)
        rows = emission.new_full((len(every), self.vocabulary_size), -torch.inf)
        for number, state in enumerate(every.tolist()):
            here = of_token == state
            tokens, places = torch.nonzero(here, as_tuple=True)
            rows[number, tokens] = emission[tokens, places]
        return rows

    def emitted_tokens(self, emission: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens (N, W) that each of `states` (N,) may emit, ascending, and their log p(x | z).

        Where a state has fewer than W, further tokens have log-probability -inf.
        """
        tokens = self._every_token(emission.device).expand(len(states), -1)
        return tokens, self.emission_rows(emission, states)

    def token_log_probs(
        self, emissions: Emissions, log_states: Tensor, tokens: Tensor | None = None
    ) -> Tensor:
        """log Σ_z p(z) p(x | z) (B, N) for log_states (B, Z), of some tokens (N,) or of all."""
        tokens = self._every_token(log_states.device) if tokens is None else tokens
        result = log_states.new_empty(len(log_states), len(tokens))
        of_state = log_states.T.contiguous()
        cost = self.states_per_token * max(1, len(log_states))
        for part in memory.pieces(len(tokens), cost, log_states.device):
            some = tokens[part]
            joint = self.gather(of_state, some) + emissions.of(some).unsqueeze(2)
            result[:, part] = joint.logsumexp(1).T
        return result

    def normalise(self, cells: Tensor) -> Tensor:
        """log p(x | z) (V, K) from one logit per cell (V, K), -inf where there is no state."""
        states = self.states(self._every_token(cells.device))
        return normalise_scattered(cells, states, self.num_states)

    def factored_emission(
        self, emit: Tensor, words: Tensor, bias: Tensor, impl: Impl = "torch"
    ) -> Tensor:
        """log p(x | z) (V, K) from logits emit_z · words_x + bias_x; emit (Z, H), words (V, H).

        The forms for GPUs multiply in bfloat16: emit and words must have such values already.
        """
        states = self.valid_states(self._every_token(emit.device))
        return self.normalise(cell_products(words, emit, states, impl) + bias.unsqueeze(1))

    def sum_by_state(self, cells: Tensor) -> Tensor:
        """For each of the cells (V, K), the sum over all cells of its state."""
        states = self.states(self._every_token(cells.device))
        flat = torch.where(states >= 0, states, self.num_states).view(-1)
        sums = cells.new_zeros(self.num_states + 1).index_add_(0, flat, cells.reshape(-1))
        return sums.index_select(0, flat).view(cells.shape)

    def draw_kept(self, rate: float, key: Tensor) -> Tensor:
        """Ids (Z',), sorted, of the states that survive state dropout at `rate`.

        They are a function of `key` (see `base.randomness`) and are on its device. Every token
        keeps at least one of its states, so a few more may survive.
        """
        table = self.states(self._every_token(key.device))
        nowhere = self.num_states
        kept = torch.zeros(nowhere + 1, dtype=torch.bool, device=key.device)
        kept.index_fill_(0, draw_kept(1, nowhere, rate, key), True)
        lost = ~kept[table].any(1)  # -1 finds the last entry, which is no state
        first = table.amax(1)
        kept.index_fill_(0, torch.where(lost & (first >= 0), first, nowhere), True)
        return torch.nonzero(kept[:nowhere]).squeeze(1)

    def draw_kept_of(self, rate: float, key: Tensor, present: Present) -> Tensor:
        """Those of `draw_kept` that are states of some blocks, in the order of these."""
        raise ValueError(f"a {self.kind} support has no blocks")

    def restrict(self, kept: Tensor) -> Support:
        """The same relation over the states `kept` (Z',) alone, renumbered 0 … Z'-1."""
        from bighmm.model.support.per_token import PerToken

        states = self.states(self._every_token(kept.device))
        return PerToken(states, self.num_states).restrict(kept)

    def restrict_to_blocks(self, kept: Tensor, present: Present) -> Support:
        """The same where `kept` are states of the blocks `present` alone, as many of each."""
        raise ValueError(f"a {self.kind} support has no blocks")

    def restrict_cells(self, cells: Tensor, kept: Tensor) -> Tensor:
        """One value per cell (V, K), for the cells of `restrict(kept)` alone."""
        tokens = self._every_token(cells.device)
        now = self.restrict(kept).valid_states(tokens)  # (V, K'), numbers among those kept
        size = now.shape[1]
        places = self.place_of(tokens.repeat_interleave(size), kept[now].view(-1))
        return cells.gather(1, places.clamp(min=0).view(-1, size))

    def label_key(self) -> dict[str, Any]:
        """What labels of the states depend on: equal where labels can be exchanged.

        Raises ValueError for a support whose tokens share no blocks of states.
        """
        raise ValueError(
            f"labels are made for dense and blocked models; a {self.kind} one has no blocks"
        )

    def _every_token(self, device: torch.device) -> Tensor:
        return torch.arange(self.vocabulary_size, device=device)


KindT = TypeVar("KindT", bound=type[Support])
REGISTRY = Registry[type[Support]]("bighmm.model.support", "support")
OLD_NAMES = {"free": "per-token"}


def register_support(cls: KindT) -> KindT:
    """Announce a kind of support under the name that files have for it, its `kind`."""
    REGISTRY.add(cls.kind, cls)
    return cls


def find_support(kind: str) -> type[Support]:
    """The class of a registered kind; ValueError for an unknown one."""
    return REGISTRY.find(OLD_NAMES.get(kind, kind))


def restore_support(settings: Any, tensors: dict[str, Tensor], vocabulary_size: int) -> Support:
    """The support that `describe` described; ValueError for what describes none."""
    kind = settings.get("kind") if isinstance(settings, dict) else None
    if not isinstance(kind, str):
        raise ValueError(f"{shown(settings)} does not describe a support, with its kind and states")
    return find_support(kind).restore(settings, tensors, vocabulary_size)


@dataclass(frozen=True)
class DescribedStates:
    """The settings of a support that is described by its number of states, and by tensors."""

    kind: str
    states: Positive

    @staticmethod
    def read(
        settings: dict[str, Any], tensors: dict[str, Tensor], *names: str
    ) -> tuple[int, list[Tensor]]:
        """The number of states, and the tensors of these names.

        Raises ValueError if there are other settings, or a tensor is missing or of no whole
        numbers.
        """
        states = fill(DescribedStates, settings, "the support").states
        for name in names:
            if name not in tensors:
                raise ValueError(f"a {settings['kind']} support needs the tensor {name}")
            if tensors[name].is_floating_point() or tensors[name].dtype == torch.bool:
                raise ValueError(f"the tensor {name} of a support must have whole numbers")
        return states, [tensors[name].long() for name in names]
