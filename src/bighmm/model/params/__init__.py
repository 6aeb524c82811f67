"""Parameterisations: modules that compute a `Model` from trainable parameters.

A parameterisation is one file in this folder. It has a dataclass of its options and a
`Parameterisation` whose `forward(kept)` returns the `Model` over the states `kept`, or over all of
them, and announces itself with `@register`. Files here are found automatically; a module outside
the package may register one too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from bighmm.base.registry import Registry
from bighmm.base.shapes import shapes_of
from bighmm.model.calibration import UNCALIBRATED, Calibration
from bighmm.model.feature_dropout import FeatureDropout
from bighmm.model.model import Model
from bighmm.model.networks.backbone import Backbone
from bighmm.model.options import OPTIONS
from bighmm.model.support import Support
from bighmm.ops.partition import Partition
from bighmm.ops.rounding import round_to_bfloat16

__all__ = [
    "REGISTRY",
    "Kind",
    "MatmulDtype",
    "Parameterisation",
    "Tables",
    "blocks_of",
    "build",
    "find",
    "register",
    "set_possible",
    "shapes",
]

MatmulDtype = Literal["float32", "bfloat16"]


class Tables(NamedTuple):
    start: nn.Parameter  # (Z,)
    transition: nn.Parameter  # (Z, Z)
    emission: nn.Parameter  # (V, K)


class Parameterisation(nn.Module):
    """A module that computes a `Model`; built from its options, a support and the end mark's id.

    `support` follows the parameters when the module is moved to another device. With a
    `matmul_dtype` of bfloat16 the vectors whose inner products are logits are rounded to it, so
    that kernels can multiply them; the model is then that of the rounded vectors.

    With `row_gradients` tables of which `forward(kept)` takes rows may have sparse gradients, of
    these rows alone (`take_rows(..., sparse=True)`), which `train.row_adamw.RowAdamW` reads.
    Training sets it. Tables that ignore it have dense gradients and are updated in all rows.

    While `feature_dropout` is set, `forward` masks its vectors; where `drops_features` is False it
    has none and training with such dropout is refused.

    `forward` multiplies the logits that `calibrates` names by their factors in `calibration`.
    """

    support: Support
    end: int | None
    matmul_dtype: MatmulDtype = "float32"
    row_gradients: bool = False
    drops_features: bool = False
    feature_dropout: FeatureDropout | None = None
    calibration: Calibration = UNCALIBRATED
    calibrates: tuple[str, ...] = ()

    def forward(self, kept: Tensor | None = None) -> Model:
        """The model over the states `kept` (Z',), or all; everything is normalised over them."""
        raise NotImplementedError

    def embeddings(self) -> list[nn.Parameter]:
        """The parameters that are embeddings of states or words, which training may freeze."""
        return []

    def state_embeddings(self) -> list[nn.Parameter]:
        """Vectors (Z, H) of the states alone, one table per role, which can be initialised."""
        return []

    def word_embedding(self) -> nn.Parameter | None:
        """Vectors (V, H) of the words, where there are any."""
        return None

    def backbones(self) -> list[Backbone]:
        """Transformers over the states, which can be initialised with pretrained weights."""
        return []

    def tables(self) -> Tables | None:
        """The parameters where they are tables of logits, which Baum-Welch can set."""
        return None

    def set_tables(self, start: Tensor, transition: Tensor, emission: Tensor) -> None:
        """Log-probabilities as logits; what is not possible, or no state's, stays as it is."""
        tables = self.tables()
        assert tables is not None, "there are tables"
        for logits, log_probs in zip(tables, (start, transition, emission), strict=True):
            set_possible(logits, log_probs)

    @property
    def splits_states(self) -> bool:
        """Whether the model stays the same when each state becomes several with its parameters."""
        return False

    @property
    def log_zeros(self) -> bool:
        """Whether parameters may be -inf, the logarithm of zero."""
        return self.tables() is not None

    @property
    def cpu_threads(self) -> int | None:
        """How many threads of a CPU a training step can use at most; None for as many as it has."""
        return None

    @property
    def for_some_blocks(self) -> bool:
        """Whether `forward` takes a second argument: the `Present` blocks that `kept` are of, which
        is all that a text without other blocks needs."""
        return False

    @property
    def rounds(self) -> bool:
        """Whether vectors are rounded to bfloat16."""
        return self.matmul_dtype == "bfloat16"

    def calibrated(self, x: Tensor, logits: str, *, rounds: bool = False) -> Tensor:
        """x times the factor of these logits, rounded again if x was."""
        factor = getattr(self.calibration, logits)
        if factor == 1.0:
            return x
        return round_to_bfloat16(x * factor) if rounds and self.rounds else x * factor

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Parameterisation:
        super()._apply(fn, recurse)
        device = next(self.parameters()).device
        if device.type != "meta":
            self.support = self.support.to(device)
        return self


@torch.no_grad()
def set_possible(logits: Tensor, log_probs: Tensor) -> None:
    """Set logits to log-probabilities, except where these are -inf."""
    logits.copy_(torch.where(log_probs > -torch.inf, log_probs, logits))


def blocks_of(support: Support) -> Partition:
    """The blocks that two-level transitions need; ValueError where there are none."""
    if support.partition is None:
        raise ValueError(
            f"two-level transitions need blocks, which a {support.kind} support does not have; "
            "use other transitions, or a blocked support"
        )
    return support.partition


Make = Callable[[Any, Support, int | None], Parameterisation]
MakeT = TypeVar("MakeT", bound=Make)


@dataclass(frozen=True)
class Kind:
    name: str
    options: type  # a dataclass of the settings
    make: Make  # (options, support, end mark) -> the module


REGISTRY = Registry[Kind](__name__, "parameterisation")
find = REGISTRY.find


def register(name: str, options: type) -> Callable[[MakeT], MakeT]:
    """Announce a parameterisation under `name`, with the dataclass of its options."""

    def add(make: MakeT) -> MakeT:
        REGISTRY.add(name, Kind(name, options, make))
        return make

    return add


def shapes(
    name: str, options: Any, support: Support, end: int | None
) -> dict[str, torch.Size] | None:
    """The shapes of all parameters and buffers, without memory for them.

    None for a parameterisation from outside that cannot be made without its numbers.
    """
    try:
        return shapes_of(lambda: find(name).make(options, support, end))
    except (NotImplementedError, RuntimeError):
        if name in OPTIONS:
            raise
        return None


def build(
    name: str, options: Any, support: Support, end: int | None, seed: int | None = None
) -> Parameterisation:
    """A parameterisation with fresh random parameters, the same for the same seed."""
    with torch.random.fork_rng():
        if seed is not None:
            torch.manual_seed(seed)
        return find(name).make(options, support, end)
