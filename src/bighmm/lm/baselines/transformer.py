"""The transformer baseline: a causal transformer with tied word embeddings.

The probabilities of a word depend on the last `context` words only, so they do not change with the
windows into which a text is cut. For this, the attention spans of all layers add up to `context`,
and each window is computed together with the words before it, which are the state.
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
    """A transformer as a `Network`.

    Its state is "tokens" (B, context - 1), the previous words, and "seen" (B,), how many of them
    are words of the text; those before it are padding.
    """

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
        """As `Network.hidden`; with `layers`, the vectors after the first so many layers."""
        tokens, length = torch.cat([state["tokens"], previous], dim=1), previous.shape[1]
        missing = self.kept - state["seen"]
        hidden = self.backbone(self.embed(tokens, key), missing=missing, layers=layers)
        seen = (state["seen"] + length).clamp(max=self.kept)
        return hidden[:, self.kept :], {"tokens": tokens[:, length:], "seen": seen}


@register("transformer", TransformerOptions)
class TransformerLM(NeuralLM):
    family, network = "transformer", Transformer
