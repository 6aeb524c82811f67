"""Options of the baselines that come with the package, by name, and the default length of texts.

They stand apart from what they describe: a command's help must not wait for torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

DEFAULT_LENGTH = 100  # tokens after the prefix at most, the end mark not counted


@dataclass(frozen=True)
class NgramOptions:
    """Interpolated Kneser-Ney (Chen & Goodman 1999)."""

    order: int = 5
    """The longest n-gram."""
    discounts: Literal["modified", "single"] = "modified"
    """Three discounts for every order, or one."""


@dataclass(frozen=True)
class FeedForwardOptions:
    """Hidden layers over the embeddings of the words before (Chiu & Rush 2020, A.2)."""

    width: int = 256
    """Of embeddings and of every layer."""
    order: int = 5
    """A word and those before it that it is predicted from."""
    layers: int = 2
    """The paper prints one and says two; its parameter counts fit two."""
    dropout: float = 0.3
    """Of embeddings and of the last layer."""


@dataclass(frozen=True)
class LSTMOptions:
    """Long short-term memory (Chiu & Rush 2020, A.2)."""

    width: int = 256
    """Of embeddings and of every layer."""
    layers: int = 2
    dropout: float = 0.3
    """Of embeddings, between layers and of the last layer."""
    init_scale: float = 1.0
    """Initial embeddings are uniform between this over the root of the width and minus that."""


@dataclass(frozen=True)
class TransformerOptions:
    """Self-attention over the words before."""

    width: int = 256
    """Of embeddings and of every layer."""
    layers: int = 4
    heads: int = 4
    """Of every layer; width must be a multiple."""
    context: int = 64
    """Words before that a word is predicted from."""
    dropout: float = 0.0
    """Of embeddings and of the last layer."""
    style: Literal["llama", "gpt2"] = "llama"
    """RMSNorm, SwiGLU, no biases; or LayerNorm, GELU, biases. Positions are rotary in both."""


OPTIONS: dict[str, type] = {
    "feed-forward": FeedForwardOptions,
    "lstm": LSTMOptions,
    "ngram": NgramOptions,
    "transformer": TransformerOptions,
}
