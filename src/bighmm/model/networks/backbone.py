"""The transformer itself: vectors (B, T, H) go in and come out.

It comes in the styles of Llama (RMSNorm, SwiGLU, no biases) and GPT-2 (LayerNorm, GELU, biases), so
that the weights of such models fit it.
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

Style = Literal["llama", "gpt2"]


@dataclass(frozen=True)
class BackboneConfig:
    """Raises ValueError with one sentence for sizes that do not go together."""

    width: int  # H
    layers: int
    heads: int
    kv_heads: int  # keys and values, each shared by heads / kv_heads heads
    hidden: int  # width inside a feed-forward network
    context: int  # how many learned positions there are; a hint where positions are rotary
    style: Style = "llama"
    rope_theta: float | None = 10_000.0  # of rotary positions; None: learned ones
    norm_eps: float = 1e-5
    reach: tuple[int, ...] = ()  # how many positions back each layer sees; empty: all

    def __post_init__(self) -> None:
        sizes = (self.width, self.layers, self.heads, self.kv_heads, self.hidden, self.context)
        if min(sizes) < 1:
            raise ValueError(f"every size of a transformer must be at least 1, not {self}")
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
        """The usual sizes: heads 64 wide, 8/3 or 4 times the width inside."""
        heads = max(1, width // 64) if heads is None else heads
        gpt2 = style == "gpt2"
        hidden = 4 * width if gpt2 else 8 * math.ceil(width / 3)
        theta = None if gpt2 else 10_000.0
        return cls(width, layers, heads, heads, hidden, context, style, theta)

    def seeing(self, words: int) -> BackboneConfig:
        """The same, with outputs that depend on the last `words` positions and nothing else.

        What a layer sees was made from what the layer below saw, so reaches add up: they sum to
        words − 1, and grow linearly from the lowest layer to the highest. Positions are rotary in
        either style, since these say how far apart two words are and not where the text was cut.
        """
        if words < 1:
            raise ValueError(f"a transformer must see at least 1 word, not {words}")
        triangle = self.layers * (self.layers + 1)
        below = [round((words - 1) * i * (i + 1) / triangle) for i in range(self.layers + 1)]
        reach = tuple(b - a for a, b in itertools.pairwise(below))
        theta = 10_000.0 if self.rope_theta is None else self.rope_theta
        return dataclasses.replace(self, context=words, rope_theta=theta, reach=reach)


class Backbone(nn.Module):
    """Layers that each add to their input, and a norm at the end."""

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
        """(B, T, H) from (B, T, H); each output depends on its own position and earlier ones.

        first: the number of the first position.
        missing: how many positions at the left of each row (B,) are padding, which is not seen;
            what comes out at these means nothing.
        layers: how many are gone through; what is below the highest has no norm yet.
        Raises ValueError for more positions than were learned.
        """
        last = first + x.shape[1]
        if self.positions is not None:
            if last > self.config.context:
                raise ValueError(
                    f"this transformer has {self.config.context} positions; {last} are too many"
                )
            x = x + self.positions[first:last]
        turn = None
        if self.config.rope_theta is not None:
            places = torch.arange(first, last, device=x.device)
            turn = _turns(places, self.config).to(x.dtype)
        reaches = self.config.reach or (last,) * len(self.layers)
        masks = {reach: _visible(x, reach, missing) for reach in set(reaches)}
        count = len(self.layers) if layers is None else layers
        for layer, reach in zip(self.layers[:count], reaches[:count], strict=True):
            x = layer(x, turn, masks[reach])
        return self.norm(x) if count == len(self.layers) else x

    def _initialise(self) -> None:
        """Normal with deviation 0.02; smaller where layers add up, so that the sum stays small."""
        for name, parameter in self.named_parameters():
            if name.endswith(("out.weight", "down.weight")):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * self.config.layers))
            elif parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)


class Layer(nn.Module):
    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.attention_norm = make_norm(config)
        self.attention = Attention(config)
        self.network_norm = make_norm(config)
        self.network = Plain(config) if config.style == "gpt2" else Gated(config)

    def forward(self, x: Tensor, turn: Tensor | None, mask: Tensor | None) -> Tensor:
        x = x + self.attention(self.attention_norm(x), turn, mask)
        return x + self.network(self.network_norm(x))


class Attention(nn.Module):
    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.heads, self.kv_heads = config.heads, config.kv_heads
        bias = config.style == "gpt2"
        shared = config.width // config.heads * config.kv_heads
        self.query = nn.Linear(config.width, config.width, bias)
        self.key = nn.Linear(config.width, shared, bias)
        self.value = nn.Linear(config.width, shared, bias)
        self.out = nn.Linear(config.width, config.width, bias)

    def forward(self, x: Tensor, turn: Tensor | None, mask: Tensor | None) -> Tensor:
        """mask: True where a position (T, T) sees another; None: all up to itself."""
        query = _split(self.query(x), self.heads)
        key, value = _split(self.key(x), self.kv_heads), _split(self.value(x), self.kv_heads)
        if turn is not None:
            query, key = _turned(query, turn), _turned(key, turn)
        if self.kv_heads < self.heads:
            times = self.heads // self.kv_heads
            key, value = key.repeat_interleave(times, 1), value.repeat_interleave(times, 1)
        seen = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None
        )
        return self.out(seen.transpose(1, 2).flatten(2))


class Gated(nn.Module):
    """Llama's feed-forward network, SwiGLU."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.width, config.hidden, bias=False)
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.silu(self.gate(x)) * self.up(x))


class Plain(nn.Module):
    """GPT-2's feed-forward network."""

    def __init__(self, config: BackboneConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, config.hidden)
        self.down = nn.Linear(config.hidden, config.width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(functional.gelu(self.up(x), approximate="tanh"))


def make_norm(config: BackboneConfig) -> nn.Module:
    kind = nn.LayerNorm if config.style == "gpt2" else nn.RMSNorm
    return kind(config.width, eps=config.norm_eps)


def _visible(x: Tensor, reach: int, missing: Tensor | None) -> Tensor | None:
    """Which positions each one sees, (T, T) or (B, 1, T, T); None: all up to itself."""
    places = torch.arange(x.shape[1], device=x.device)
    if missing is None and reach >= len(places) - 1:
        return None
    back = places.unsqueeze(1) - places  # how far the second is behind the first
    seen = (back >= 0) & (back <= reach)
    if missing is None:
        return seen
    there = places >= missing.view(-1, 1, 1, 1)
    return (seen & there) | (back == 0)  # padding sees itself: a softmax over nothing is no number


def _turns(places: Tensor, config: BackboneConfig) -> Tensor:
    """Cosines and sines (2, T, width of a head / 2) of the angles of rotary positions."""
    assert config.rope_theta is not None
    half = config.width // config.heads // 2
    speeds = config.rope_theta ** -(torch.arange(half, device=places.device) / half)
    angles = places.unsqueeze(1) * speeds
    return torch.stack([angles.cos(), angles.sin()])


def _turned(x: Tensor, turn: Tensor) -> Tensor:
    """Rotate the pairs (i, i + half) of every head's vector, as Hugging Face's Llama has them."""
    (cos, sin), (left, right) = turn, x.chunk(2, -1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


def _split(x: Tensor, heads: int) -> Tensor:
    """(B, heads, T, width of a head) from (B, T, ...)."""
    return x.unflatten(2, (heads, -1)).transpose(1, 2)
