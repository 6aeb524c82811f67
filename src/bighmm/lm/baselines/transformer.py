"""A causal transformer as a language model, weight-tied.

The probabilities of a word are a function of the last `context` words, or of those that there are:
how a text is cut into windows makes no difference. To that end the layers' reaches add up to
`context`, and the words before a window, which are the state, are read again with it.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor, nn

from bighmm.lm.baselines import register
from bighmm.lm.baselines.neural import Network, NeuralLM, State
from bighmm.lm.options import TransformerOptions
from bighmm.model.networks import Backbone
from bighmm.model.networks.pretrained import own_config


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
