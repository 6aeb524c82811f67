"""Language models to compare with, trained, opened and asked through the same commands.

A baseline is one file in this folder: a dataclass of its options and a class that announces itself
with `@register` and does what `Baseline` says. Files here are found by themselves.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from bighmm.evaluate import Convention, Evaluation
from bighmm.text import Tokenizer

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from bighmm.corpus import Corpus


class Predictor(Protocol):
    """What is asked of a language model; an `HMM` is one."""

    @property
    def end(self) -> int | None: ...

    def log_prob(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """log p (B,) of rows of token ids (B, T)."""
        ...

    def next_token(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """log p (B, V) of what follows each row."""
        ...

    def sample(
        self,
        n: int,
        length: int | None = None,
        prefix: Any = None,
        generator: torch.Generator | None = None,
        temperature: float = 1.0,
    ) -> Tensor:
        """Token ids (n, L) of what follows `prefix`; see `HMM.sample`."""
        ...


class Baseline(Protocol):
    tokenizer: Tokenizer
    convention: Convention  # of `perplexity`, if none is asked for

    @classmethod
    def fit(cls, options: Any, corpus: Corpus) -> Baseline:
        """Train on the corpus' training text."""
        ...

    @classmethod
    def load(cls, folder: Path) -> Baseline: ...

    def save_pretrained(self, save_directory: Path) -> Any: ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Any) -> str: ...

    @property
    def size(self) -> int:
        """How many numbers the model is made of."""
        ...

    def predictor(self) -> Predictor: ...

    def perplexity(
        self, corpus_or_ids: Any, *, split: str = "test", convention: Convention = "reset"
    ) -> Evaluation: ...


@dataclass(frozen=True)
class Kind:
    options: type  # a dataclass of the settings
    model: type[Baseline]


_KINDS: dict[str, Kind] = {}
T = TypeVar("T", bound=type[Baseline])


def register(name: str, options: type) -> Callable[[T], T]:
    """Announce a baseline under `name`, with the dataclass of its options."""

    def add(model: T) -> T:
        _KINDS[name] = Kind(options, model)
        return model

    return add


@cache
def kinds() -> dict[str, Kind]:
    """Every baseline in this folder, by name."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return dict(sorted(_KINDS.items()))


def find(name: str) -> Kind:
    if name not in kinds():
        choices = ", ".join(("hmm", *kinds()))
        raise ValueError(f"there is no family of models {name!r}; choose from {choices}")
    return kinds()[name]
