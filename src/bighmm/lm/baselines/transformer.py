"""A causal transformer as a language model, weight-tied.

The probabilities of a word are a function of the last `context` words, or of those that there are:
how a text is cut into windows makes no difference. To that end the layers' reaches add up to
`context`, and the words before a window, which are the state, are read again with it.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from bighmm.lm.baselines import register
from bighmm.lm.baselines.neural import Network, NeuralLM, State
from bighmm.model.networks import Backbone
from bighmm.model.networks.pretrained import own_config


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


class Transformer(Network):
    """Its state: the last context − 1 words as "tokens", and how many of them there are, "seen"."""

    memory: int

    def __init__(self, options: TransformerOptions, vocabulary_size: int) -> None:
        super().__init__(vocabulary_size, options.width, options.dropout)
        nn.init.normal_(self.words, std=0.02)
        self.backbone = Backbone(own_config(**dataclasses.asdict(options)))
        self.memory = options.context
        self.kept = self.memory - 1

    def begin(self, rows: int, end: int) -> State:
        device = self.words.device
        return {
            "tokens": torch.full((rows, self.kept), end, device=device),
            "seen": torch.zeros(rows, dtype=torch.long, device=device),
        }

    def hidden(
        self, previous: Tensor, state: State, key: Tensor | None, layers: int | None = None
    ) -> tuple[Tensor, State]:
        """layers: how many are gone through, all without it."""
        tokens, length = torch.cat([state["tokens"], previous], dim=1), previous.shape[1]
        missing = self.kept - state["seen"]
        hidden = self.backbone(self.embed(tokens, key), missing=missing, layers=layers)
        seen = (state["seen"] + length).clamp(max=self.kept)
        return hidden[:, self.kept :], {"tokens": tokens[:, length:], "seen": seen}


@register("transformer", TransformerOptions)
class TransformerLM(NeuralLM):
    family, network = "transformer", Transformer
