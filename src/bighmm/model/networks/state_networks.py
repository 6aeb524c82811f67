"""Networks that make vectors of state embeddings: MLPs of any depth, and transformers over states.

Chiu & Rush's network, LayerNorm(relu(W₂ y) + y) with y = relu(W₁ x), is the MLP with two layers and
everything on; on a GPU it has kernels of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, nn

from bighmm.model.networks.backbone import Backbone, BackboneConfig
from bighmm.ops.impl import Impl
from bighmm.ops.residual import Network, residuals


@dataclass(frozen=True)
class MLPShape:
    layers: int = 2
    skip: bool = True
    relu: bool = True
    layer_norm: bool = True


CHIU_RUSH = MLPShape()


class MLP(nn.Module):
    """Linear layers of one width; without any, the identity.

    A skip connection leads around every layer but the first, and around that if it is the only one.
    The norm comes last.
    """

    def __init__(self, width: int, shape: MLPShape = CHIU_RUSH) -> None:
        super().__init__()
        self.shape = shape
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(width) if shape.layer_norm and shape.layers else None

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            y = layer(x).relu() if self.shape.relu else layer(x)
            x = y + x if self.shape.skip and (i > 0 or len(self.layers) == 1) else y
        return x if self.norm is None else self.norm(x)

    def fused(self) -> Network | None:
        """Its tensors, if it is the network that there are kernels for."""
        if self.shape != CHIU_RUSH:
            return None
        parts = (*self.layers, self.norm)
        return Network(*(t for part in parts for t in (part.weight, part.bias)))


class StateTransformer(nn.Module):
    """A causal transformer that reads the states' embeddings one after the other."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.backbone = Backbone(config)

    def forward(self, x: Tensor) -> Tensor:
        return self.backbone(x.unsqueeze(0)).squeeze(0)

    def fused(self) -> Network | None:
        return None


StateNetwork = MLP | StateTransformer


def apply(networks: Iterable[nn.Module], inputs: list[Tensor], impl: Impl) -> list[Tensor]:
    """Each network's result; fused ones that read the same tensor are done together."""
    given: list[StateNetwork] = [n for n in networks if isinstance(n, MLP | StateTransformer)]
    fused = [network.fused() for network in given]
    results: list[Tensor] = [
        x if kernels is not None else network(x)
        for network, kernels, x in zip(given, fused, inputs, strict=True)
    ]
    for x in {id(x): x for x in inputs}.values():
        places = [i for i, other in enumerate(inputs) if other is x and fused[i] is not None]
        if places:
            found = residuals(x, [n for i in places if (n := fused[i]) is not None], impl)
            for i, result in zip(places, found, strict=True):
                results[i] = result
    return results
