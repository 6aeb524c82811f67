"""Chiu & Rush's neural parameterisation: states and words are embedded, small residual networks
make from a state's embedding what it is to start there, to leave it and to emit from it.

    transitions  s = leaving · enteringᵀ        emissions  φ = emit · wordsᵀ + bias

`entering = "embedding"` uses the raw state embedding as the entering vector, as the authors' code
does; `"mlp"` passes it through a network of its own, as their paper prints it, and takes the start
logits from one more leaving vector, that of the state before the first.
`embeddings = "factored"` composes each state's embedding from its block's and its own half.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from bighmm.emissions import Emissions, EmissionTable, FactoredEmission
from bighmm.hmm import HMM
from bighmm.kernels import Impl, rounded, use_triton
from bighmm.kernels.gather import take_rows
from bighmm.kernels.residual import Network, residuals, scores
from bighmm.params import Parameterisation, register
from bighmm.params.emissions import factored_emission
from bighmm.support import Blocked, Dense, Support
from bighmm.transitions import Factored


@dataclass(frozen=True)
class NeuralOptions:
    """Residual networks over state embeddings (Chiu & Rush 2020)."""

    width: int = 256
    """Width of embeddings and networks (the papers' h)."""
    entering: Literal["embedding", "mlp"] = "embedding"
    """What a state is entered by: its raw embedding, or a network of it."""
    embeddings: Literal["independent", "factored"] = "independent"
    """One embedding per state, or a block's half and a state's half composed by a network."""
    init_scale: float = 0.1
    """Standard deviation of the initial embeddings."""


class Residual(nn.Module):
    """LayerNorm(relu(W₂ y) + y) with y = relu(W₁ x)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def network(self) -> Network:
        layers = (self.first, self.second, self.norm)
        return Network(*(t for layer in layers for t in (layer.weight, layer.bias)))


def apply(networks: Iterable[nn.Module], inputs: list[Tensor], impl: Impl) -> list[Tensor]:
    """Each network's result; those that read the same tensor are done together."""
    made = [network.network() for network in networks if isinstance(network, Residual)]
    results: list[Tensor] = list(inputs)
    for x in {id(x): x for x in inputs}.values():
        places = [i for i, other in enumerate(inputs) if other is x]
        found = residuals(x, [made[i] for i in places], impl)
        for i, result in zip(places, found, strict=True):
            results[i] = result
    return results


@register("neural", NeuralOptions)
class Neural(Parameterisation):
    def __init__(self, options: NeuralOptions, support: Support, end: int | None) -> None:
        super().__init__()
        self.support, self.end = support, end
        width, scale = options.width, options.init_scale
        roles = ["leaving", "entering", "emit"]
        if options.entering == "embedding":
            roles.append("start")
        kind = FactoredEmbedding if options.embeddings == "factored" else IndependentEmbedding
        self.state: nn.Module = kind(support, roles, width, scale)
        self.leaving = Residual(width)
        self.emit = Residual(width)
        if options.entering == "mlp":
            self.entering: Residual | None = Residual(width)
            self.before_first = nn.Parameter(torch.randn(width) * scale)
        else:
            self.entering = None
            self.starting = nn.Sequential(Residual(width), nn.Linear(width, 1))
        self.words = nn.Parameter(torch.randn(support.vocabulary_size, width) * scale)
        self.word_bias = nn.Parameter(torch.zeros(support.vocabulary_size))

    def forward(self, kept: Tensor | None = None) -> HMM:
        self.support = self.support.to(self.words.device)
        support = self.support if kept is None else self.support.restrict(kept)
        rounds = self.operands == "bfloat16"
        impl: Impl = "auto" if rounds else "torch"
        state = self.state(kept, impl)
        if self.entering is None:
            networks = [self.leaving, self.emit, self.starting[0]]
            inputs = [state["leaving"], state["emit"], state["start"]]
            leaving, emit, starting = apply(networks, inputs, impl)
            entering = state["entering"]
            weight, bias = self.starting[1].parameters()
            start = scores(starting, weight.squeeze(0), impl) + bias
        else:
            networks = [self.leaving, self.emit, self.entering]
            inputs = [state["leaving"], state["emit"], state["entering"]]
            leaving, emit, entering = apply(networks, inputs, impl)
            start = scores(entering, self.before_first, impl)
        words: Tensor = self.words
        if rounds:
            entering, words = rounded(entering), rounded(words)
            if not use_triton(leaving):  # which rounds them itself
                leaving, emit = rounded(leaving), rounded(emit)
        emissions: Emissions
        if rounds and isinstance(support, Dense):
            emissions = FactoredEmission(emit, words, self.word_bias)
        else:
            emission = factored_emission(support, emit, words, self.word_bias, impl)
            emissions = EmissionTable(emission)
        transitions = Factored(leaving, entering, rounds)
        return HMM(start.log_softmax(0), transitions, emissions, support, self.end)


class IndependentEmbedding(nn.Module):
    """One embedding (Z, H), the same for every role."""

    def __init__(self, support: Support, roles: list[str], width: int, scale: float) -> None:
        super().__init__()
        self.roles = roles
        self.table = nn.Parameter(torch.randn(support.num_states, width) * scale)

    def forward(self, kept: Tensor | None, impl: Impl = "torch") -> dict[str, Tensor]:
        chosen = self.table if kept is None else take_rows(self.table, kept, impl)
        return dict.fromkeys(self.roles, chosen)


class FactoredEmbedding(nn.Module):
    """[block, state] halves (M, H/2) and (Z, H/2), composed by one network per role."""

    def __init__(self, support: Support, roles: list[str], width: int, scale: float) -> None:
        super().__init__()
        if not isinstance(support, Blocked) or width % 2:
            raise ValueError(
                f"factored embeddings need a blocked support and an even width, not "
                f"{type(support).__name__.lower()} and {width}"
            )
        self.block = nn.Parameter(torch.randn(support.partition.num_blocks, width // 2) * scale)
        self.own = nn.Parameter(torch.randn(support.num_states, width // 2) * scale)
        self.compose = nn.ModuleDict({role: Residual(width) for role in roles})

    def forward(self, kept: Tensor | None, impl: Impl = "torch") -> dict[str, Tensor]:
        own = self.own if kept is None else take_rows(self.own, kept, impl)
        per_block = len(own) // len(self.block)
        block = self.block.unsqueeze(1).expand(-1, per_block, -1).reshape(len(own), -1)
        both = torch.cat([block, own], dim=1)
        found = apply(self.compose.values(), [both] * len(self.compose), impl)
        return dict(zip(self.compose, found, strict=True))
