"""Networks on the embeddings of states (Z, H): MLPs of any depth, and transformers.

The network of Chiu & Rush, LayerNorm(relu(W₂ y) + y) with y = relu(W₁ x), is the MLP with two
layers and all options on. For this one there are kernels (`ops.residual`).
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
    """The options of an `MLP`."""

    layers: int = 2
    skip: bool = True
    relu: bool = True
    layer_norm: bool = True


CHIU_RUSH = MLPShape()


class MLP(nn.Module):
    """Linear layers of equal width with a norm at the end; with 0 layers the identity.

    With `skip`, every layer except the first has a skip connection, and the first if it is the only
    layer.
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
        """The tensors of the network, if it is the one that there are kernels for; else None."""
        if self.shape != CHIU_RUSH:
            return None
        parts = (*self.layers, self.norm)
        return Network(*(t for part in parts for t in (part.weight, part.bias)))


class StateTransformer(nn.Module):
    """A causal transformer over the embeddings of all states, in the order of their numbers."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.backbone = Backbone(config)

    def forward(self, x: Tensor) -> Tensor:
        return self.backbone(x.unsqueeze(0)).squeeze(0)

    def fused(self) -> Network | None:
        """None: there are no kernels for it."""
        return None


StateNetwork = MLP | StateTransformer


def apply(networks: Iterable[nn.Module], inputs: list[Tensor], impl: Impl) -> list[Tensor]:
    """The result of each network on its input.

    Networks with kernels that have the same input are computed together.
    """
    state_networks: list[StateNetwork] = [
        network for network in networks if isinstance(network, MLP | StateTransformer)
    ]
    fused = [network.fused() for network in state_networks]
    results: list[Tensor] = [
        x if kernels is not None else network(x)
        for network, kernels, x in zip(state_networks, fused, inputs, strict=True)
    ]
    for x in {id(x): x for x in inputs}.values():
        places = [i for i, other in enumerate(inputs) if other is x and fused[i] is not None]
        if places:
            together = residuals(x, [n for i in places if (n := fused[i]) is not None], impl)
            for i, result in zip(places, together, strict=True):
                results[i] = result
    return results
