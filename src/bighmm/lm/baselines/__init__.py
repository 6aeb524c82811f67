"""Baselines: other language models to compare with, behind the same commands.

A baseline is one module of this package. It has a class that implements `Baseline` and is decorated
with `@register`, with a name and the dataclass of its options. `find` imports all modules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from bighmm.base.registry import Registry
from bighmm.lm.protocol import LM

if TYPE_CHECKING:
    from bighmm.data.corpus import Corpus

__all__ = ["REGISTRY", "Baseline", "Kind", "find", "register"]


class Baseline(LM, Protocol):
    """An `LM` that reads itself from a folder."""

    @classmethod
    def load(cls, folder: Path) -> Baseline:
        """The model that `save_pretrained` wrote; ValueError if a file is missing or damaged."""
        ...


@dataclass(frozen=True)
class Kind:
    """A family of baselines."""

    options: type  # a dataclass of the settings
    model: type[Baseline]
    fit: Callable[[Any, Corpus], Baseline] | None  # from counts, at once; None: trained in steps


__all__ = ["REGISTRY", "Baseline", "Kind", "find", "register"]

REGISTRY = Registry[Kind](__name__, "baseline")
find = REGISTRY.find
T = TypeVar("T", bound=type[Baseline])


def register(name: str, options: type) -> Callable[[T], T]:
    """Register a baseline under `name`, with the dataclass of its options.

    A class with `fit(options, corpus)` is estimated from counts at once; any other is trained in
    steps.
    """

    def add(model: T) -> T:
        REGISTRY.add(name, Kind(options, model, getattr(model, "fit", None)))
        return model

    return add
