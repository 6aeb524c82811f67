"""A causal transformer from vectors (B, T, H) to vectors (B, T, H), without word embeddings.

Its style is that of Llama (RMSNorm, SwiGLU, no biases) or of GPT-2 (LayerNorm, GELU, biases), so it
can have the weights of such models.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from bighmm.base.settings import shown

MOST_LAYERS = 256  # which take a second or two to be made
Style = Literal["llama", "gpt2"]


@dataclass(frozen=True)
class BackboneConfig:
    """The sizes of a transformer; ValueError with one sentence if they do not fit each other."""

    width: int  # H
    layers: int
    heads: int
    kv_heads: int  # heads of keys and values, each shared by heads / kv_heads heads
    hidden: int  # width inside a feed-forward network
    context: int  # number of learned positions; without effect on rotary positions
    style: Style = "llama"
    rope_theta: float | None = 10_000.0  # base of rotary positions; None: learned positions
    norm_eps: float = 1e-5
    reach: tuple[int, ...] = ()  # by layer, how many previous positions it attends to; empty: all

    def __post_init__(self) -> None:
        sizes = (self.width, self.layers, self.heads, self.kv_heads, self.hidden, self.context)
        if min(sizes) < 1 or self.layers > MOST_LAYERS:
            raise ValueError(
                f"every size of a transformer must be at least 1, and there may be {MOST_LAYERS} "
                f"layers, not {shown(self)}"
            )
        theta = self.rope_theta
        if not (theta is None or 0 < theta < math.inf) or not 0 <= self.norm_eps < math.inf:
            raise ValueError(
                f"rope_theta must be above 0 and norm_eps not below, both finite, not "
                f"{theta} and {self.norm_eps}"
            )
        if self.style not in ("llama", "gpt2"):
            raise ValueError(f"there is no transformer of style {self.style!r}; use llama or gpt2")
        if self.width % self.heads or self.heads % self.kv_heads:
            raise ValueError(
                f"a width of {self.width} must be a multiple of the {self.heads} heads, and these "
                f"a multiple of the {self.kv_heads} heads of keys and values"
            )
        if self.rope_theta is not None and self.width // self.heads % 2:
            raise ValueError(
                f"rotary positions need heads of an even width, not {self.width // self.heads}"
            )
        if self.reach and (len(self.reach) != self.layers or min(self.reach) < 0):
            raise ValueError(f"each of {self.layers} layers needs its reach, not {self.reach}")

    @classmethod
    def of(
        cls,
        width: int,
        layers: int,
        heads: int | None = None,
        style: Style = "llama",
        context: int = 1024,
    ) -> BackboneConfig:
        """A configuration of usual sizes: heads of width 64, hidden width 8/3 or 4 times H."""
        heads = max(1, width // 64) if heads is None else heads
        gpt2 = style == "gpt2"
        hidden = 4 * width if gpt2 else 8 * math.ceil(width / 3)
        theta = None if gpt2 else 10_000.0
        return cls(width, layers, heads, heads, hidden, context, style, theta)

    def with_context(self, words: int) -> BackboneConfig:
        """The same configuration, but outputs depend only on the last `words` positions.

        The inputs of a layer depend on the positions that the layer below attends to, so the
        reaches of all layers add up. They sum to words − 1, and grow linearly from the lowest layer
        to the highest. Positions are rotary in both styles, because these depend only on the
        distance of two words, not on where a text was cut.
        """
        if words < 1:
            raise ValueError(f"a transformer must see at least 1 word, not {words}")
        triangle = self.layers * (self.layers + 1)
        below = [round((words - 1) * i * (i + 1) / triangle) for i in range(self.layers + 1)]
        reach = tuple(b - a for a, b in itertools.pairwise(below))
        theta = 10_000.0 if self.rope_theta is None else self.rope_theta
        return dataclasses.replace(self, context=words, rope_theta=theta, reach=reach)


class Backbone(nn.Module):
    """Residual layers and a final norm."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.config = config
        self.positions: nn.Parameter | None = None
        if config.rope_theta is None:
            self.positions = nn.Parameter(torch.empty(config.context, config.width))
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = make_norm(config)
        self._initialise()

    def forward(
        self, x: Tensor, first: int = 0, missing: Tensor | None = None, layers: int | None = None
    ) -> Tensor:
        """Vectors (B, T, H) from x (B, T, H); each depends on its own and earlier positions.

        first: the number of the first position.
        missing: (B,) how many positions at the left of each row are padding, which has no effect on
            the others; the outputs there are meaningless.
        layers: the result is that of the first `layers` layers; without the final norm unless these
            are all.

        Raises ValueError for more positions than were learned.
        """
        last = first + x.shape[1]
        if self.positions is not None:
            if last > self.config.context:
                raise ValueError(
                    f"this transformer has {self.config.context} positions; {last} are too many"
                )
            x = x + self.positions[first:last]
        rotation = None
        if self.config.rope_theta is not None:
            places = torch.arange(first, last, device=x.device)
            rotation = _rotations(places, self.config).to(x.dtype)
        reaches = self.config.reach or (last,) * len(self.layers)
        masks = {reach: _attention_mask(x, reach, missing) for reach in set(reaches)}
        count = len(self.layers) if layers is None else layers
        for layer, reach in zip(self.layers[:count], reaches[:count], strict=True):
            x = layer(x, rotation, masks[reach])
        return self.norm(x) if count == len(self.layers) else x

    def _initialise(self) -> None:
        """Draw weights from a normal distribution with standard deviation 0.02.

        It is smaller for the last matrices of residual branches, whose outputs add up over layers.
        """
        for name, parameter in self.named_parameters():
            if name.endswith(("out.weight", "down.weight")):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * self.config.layers))
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)


class Layer(nn.Module):
    """Attention and a feed-forward network, each as a residual branch with a norm before it."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.attention_norm = make_norm(config)
        self.attention = Attention(config)
        self.network_norm = make_norm(config)
        self.network = GeluNetwork(config) if config.style == "gpt2" else SwiGLU(config)

    def forward(self, x: Tensor, rotation: Tensor | None, mask: Tensor | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), rotation, mask)
        return x + self.network(self.network_norm(x))


class Attention(nn.Module):
    """Causal self-attention with grouped heads of keys and values."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.heads, config.kv_heads
        bias = config.style == "gpt2"
        kv_width = config.width // config.heads * config.kv_heads
        self.query = nn.Linear(config.width, config.width, bias)
        self.key = nn.Linear(config.width, kv_width, bias)
        self.value = nn.Linear(config.width, kv_width, bias)
        self.out = nn.Linear(config.width, config.width, bias)

    def forward(self, x: Tensor, rotation: Tensor | None, mask: Tensor | None) -> Tensor:
        """(B, T, H) from x (B, T, H).

        rotation: of `_rotations`; None: no rotary positions.
        mask: of `_attention_mask`; None: each position attends to itself and all before it.
        """
        query = _split(self.query(x), self.heads)
        key, value = _split(self.key(x), self.kv_heads), _split(self.value(x), self.kv_heads)
        if rotation is not None:
            query, key = _rotated(query, rotation), _rotated(key, rotation)
        if self.kv_heads < self.heads:
            times = self.heads // self.kv_heads
            key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
        heads = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None
        )
        return self.out(heads.transpose(1, 2).flatten(2))


class SwiGLU(nn.Module):
    """The feed-forward network of Llama."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.width, config.hidden, bias=False)
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class GeluNetwork(nn.Module):
    """The feed-forward network of GPT-2."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, config.hidden)
        self.down = nn.Linear(config.hidden, config.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.gelu(self.up(x), approximate="tanh"))


def make_norm(config: BackboneConfig) -> nn.Module:
    """LayerNorm in the style of GPT-2, RMSNorm in that of Llama."""
    kind = nn.LayerNorm if config.style == "gpt2" else nn.RMSNorm
    return kind(config.width, eps=config.norm_eps)


def _attention_mask(x: Tensor, reach: int, missing: Tensor | None) -> Tensor | None:
    """Whether each position attends to each other one: (T, T) or, with padding, (B, 1, T, T).

    None if each attends to itself and all before it.
    """
    places = torch.arange(x.shape[1], device=x.device)
    if missing is None and reach >= len(places) - 1:
        return None
    distance = places.unsqueeze(1) - places
    mask = (distance >= 0) & (distance <= reach)
    if missing is None:
        return mask
    inside = places >= missing.view(-1, 1, 1, 1)
    return (mask & inside) | (distance == 0)  # a softmax over no positions would give NaN


def _rotations(places: Tensor, config: BackboneConfig) -> Tensor:
    """Cosines and sines (2, T, width of a head / 2) of the angles of rotary positions (T,)."""
    assert config.rope_theta is not None
    half = config.width // config.heads // 2
    frequencies = config.rope_theta ** -(torch.arange(half, device=places.device) / half)
    angles = places.unsqueeze(1) * frequencies
    return torch.stack([angles.cos(), angles.sin()])


def _rotated(x: Tensor, rotation: Tensor) -> Tensor:
    """x with the pairs (i, i + half) of every head rotated, as in Hugging Face's Llama."""
    (cos, sin), (left, right) = rotation, x.chunk(2, -1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


def _split(x: Tensor, heads: int) -> Tensor:
    """(B, heads, T, width of a head) from x (B, T, heads · width of a head)."""
    return x.unflatten(2, (heads, -1)).transpose(1, 2)
