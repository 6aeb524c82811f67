"""A causal transformer as a language model, weight-tied.

The probabilities of a word are a function of the last `context` words, however a text is cut into
windows. To that end the reaches of the layers add up to `context`, and the words before a window,
which are the state, are read again with it.
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
    """A network whose state is the last context − 1 words, "tokens", and their number, "seen"."""

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
        """As `Network.hidden`, after the first `layers` layers; without it after all of them."""
        tokens, length = torch.cat([state["tokens"], previous], dim=1), previous.shape[1]
        missing = self.kept - state["seen"]
        hidden = self.backbone(self.embed(tokens, key), missing=missing, layers=layers)
        seen = (state["seen"] + length).clamp(max=self.kept)
        return hidden[:, self.kept :], {"tokens": tokens[:, length:], "seen": seen}


@register("transformer", TransformerOptions)
class TransformerLM(NeuralLM):
    family, network = "transformer", Transformer
