"""Language models to compare with, trained, opened and asked through the same commands.

A baseline is one file in this folder: a dataclass of its options and a class that announces itself
with `@register` and does what `Baseline` says. Files here are found by themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from bighmm.base.registry import Registry
from bighmm.data.tokenizers import Tokenizer
from bighmm.lm.evaluation import Convention, Evaluation

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from bighmm.data.corpus import Corpus


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
    def load(cls, folder: Path) -> Baseline: ...

    def save_pretrained(self, save_directory: Path) -> Any: ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Any) -> str: ...

    @property
    def size(self) -> int:
        """How many numbers the model is made of."""
        ...

    @property
    def device(self) -> torch.device: ...

    def to(self, device: torch.device | str, operands: Any = "auto") -> Any: ...

    def predictor(self) -> Predictor: ...

    def perplexity(
        self, corpus_or_ids: Any, *, split: str = "test", convention: Convention = "reset"
    ) -> Evaluation: ...


@dataclass(frozen=True)
class Kind:
    options: type  # a dataclass of the settings
    model: type[Baseline]
    fit: Callable[[Any, Corpus], Baseline] | None  # how it is counted; None: trained in steps


REGISTRY = Registry[Kind](__name__, "baseline")
find = REGISTRY.find
T = TypeVar("T", bound=type[Baseline])


def register(name: str, options: type) -> Callable[[T], T]:
    """Announce a baseline under `name`, with the dataclass of its options.

    A class with `fit(options, corpus)` is counted at once, any other is trained in steps.
    """

    def add(model: T) -> T:
        REGISTRY.add(name, Kind(options, model, getattr(model, "fit", None)))
        return model

    return add
