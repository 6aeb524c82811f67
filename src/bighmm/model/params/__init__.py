"""Modules that make an HMM.

A parameterisation is one file in this folder. It has a dataclass of its options and a
`Parameterisation` whose `forward(kept)` returns an `HMM` over the states `kept`, or over all of
them, and announces itself with `@register`. Files here are found by themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn

from bighmm.base.registry import Registry
from bighmm.hmm import HMM
from bighmm.model.support import Support

Operands = Literal["float32", "bfloat16"]


class Parameterisation(nn.Module):
    """A module that makes an HMM; built from its options, a support and the end mark's id.

    With `operands` of bfloat16 the vectors whose inner products are logits are rounded to it, so
    that kernels can multiply them; the model is then that of the rounded vectors.
    """

    support: Support
    end: int | None
    operands: Operands = "float32"

    def forward(self, kept: Tensor | None = None) -> HMM:
        """The HMM over the states `kept` (Z',), or all; everything is normalised over them."""
        raise NotImplementedError

    def embeddings(self) -> list[nn.Parameter]:
        """The parameters that are embeddings of states or words, which training may freeze."""
        return []


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


def build(
    name: str, options: Any, support: Support, end: int | None, seed: int | None = None
) -> Parameterisation:
    """A parameterisation with fresh random parameters, the same for the same seed."""
    with torch.random.fork_rng():
        if seed is not None:
            torch.manual_seed(seed)
        return find(name).make(options, support, end)
