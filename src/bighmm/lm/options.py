"""Options of the baselines that come with the package, by name, and what all models share.

They stand apart from what they describe: a command's help must not wait for torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Convention = Literal["reset", "carry"]  # after an end mark: start anew, or carry the state on
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
class AWDLSTMOptions:
    """A weight-dropped LSTM (Merity, Keskar & Socher 2017)."""

    width: int = 1150
    """Of every layer but the last."""
    embedding: int = 400
    """Width of the word embeddings and of the last layer."""
    layers: int = 3
    dropout: float = 0.4
    """Of the last layer; as all but the next two, the same at all words of a window."""
    dropout_words: float = 0.1
    """Share of the vocabulary whose embeddings are zero in a window."""
    dropout_weights: float = 0.5
    """Share of the recurrent weights that are zero in a window."""
    dropout_input: float = 0.4
    """Of the embeddings."""
    dropout_between: float = 0.25
    """Between layers."""
    activation_penalty: float = 2.0
    """Times the mean square of the last layer."""
    change_penalty: float = 1.0
    """Times the mean square of the difference between the last layer at neighbouring words."""


Stage = Literal[
    "hmm",
    "word-transitions",
    "late-transitions",
    "late-emissions",
    "softmax",
    "sigmoid",
    "tanh",
    "gated",
]
STAGES: tuple[Stage, ...] = get_args(Stage)


@dataclass(frozen=True)
class RecurrentHMMOptions:
    """An HMM made recurrent in stages (after Buys, Bisk & Choi 2018)."""

    stage: Stage = "late-emissions"
    """From an exact HMM to a gated RNN, each with the changes of those before it."""
    width: int = 475
    """The number of states: 10 million weights with the Penn Treebank; 900 for the stage hmm."""
    embedding: int = 475
    """Width of the vectors of words that are read; the stage hmm has none."""
    dropout: float = 0.0
    """Of the words that are read and, from late-emissions on, of what predicts the next one."""
    init_scale: float = 1.0
    """Initial tables are uniform between this and minus this, from sigmoid on over root(width)."""


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
    "awd-lstm": AWDLSTMOptions,
    "feed-forward": FeedForwardOptions,
    "lstm": LSTMOptions,
    "ngram": NgramOptions,
    "recurrent-hmm": RecurrentHMMOptions,
    "transformer": TransformerOptions,
}
