"""Settings of a distillation from a language model, and the recipes it trains with.

This module does not import torch.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from bighmm.base.reading import read_text
from bighmm.base.settings import check_seed, check_sharpness
from bighmm.train.recipe import Recipe, read_recipe

DEVICE_DEFAULTS = {  # tokens to sample, texts of a batch
    "cpu": {"tokens": 50_000, "at_once": 64},
    "cuda": {"tokens": 10_000_000, "at_once": 1024},
}
ROWS = {"cpu": 64, "cuda": 4096}  # that are written side by side
SHORTEST = 64  # tokens of a row, even if that makes a shard larger than what was asked for


@dataclass(frozen=True)
class SampleSettings:
    """How texts are sampled from a language model."""

    tokens: int = 10_000_000  # at least, in all
    length: int = 63  # tokens of a text at most, the end mark not counted; see `window`
    prompts: tuple[str, ...] = ()  # used in turn; without one a text follows the beginning mark
    chat: bool = False  # prompts are a user's turns
    temperature: float = 1.0
    top_p: float = 1.0  # sample from the fewest likeliest tokens that have this probability
    at_once: int = 64  # texts of a batch, which is a shard
    seed: int = 1

    def __post_init__(self) -> None:
        if min(self.tokens, self.at_once) < 1 or self.length < 0:
            raise ValueError(
                f"tokens and texts at once must be at least 1 and length at least 0, not "
                f"{self.tokens}, {self.at_once} and {self.length}"
            )
        check_sharpness(self.temperature, self.top_p)

    @classmethod
    def on_device(
        cls, device: str, tokens: int | None = None, at_once: int | None = None, **others: Any
    ) -> SampleSettings:
        """Settings with as many tokens and texts at once as suit a device, "cpu" or "cuda"."""
        chosen: dict[str, Any] = dict(DEVICE_DEFAULTS[device])
        if tokens is not None:
            chosen["tokens"] = tokens
        if at_once is not None:
            chosen["at_once"] = at_once
        return cls(**chosen, **others)

    @property
    def window(self) -> int:
        """Tokens that are sampled for a text at most: `length` and the end mark.

        A text that has not ended by then is cut there, and has as many tokens without an end mark.
        """
        return self.length + 1

    def stored(self) -> dict[str, Any]:
        """The settings as they are written to files, where `length` counts the end mark."""
        return {**dataclasses.asdict(self), "length": self.window}


@dataclass(frozen=True)
class WriteSettings:
    """How a corpus is written by language models of this library."""

    tokens: int = 10_000_000  # at least, in all
    rows: int = 64  # texts that are written side by side
    stream: int = 2048  # tokens of a row before it begins anew; its last sentence is finished
    temperature: float = 1.0
    top_p: float = 1.0  # sample from the fewest likeliest tokens that have this probability
    seed: int = 1

    def __post_init__(self) -> None:
        if min(self.tokens, self.rows, self.stream) < 1:
            raise ValueError(
                f"tokens, batch and stream must be at least 1, not {self.tokens}, {self.rows} and "
                f"{self.stream}"
            )
        check_sharpness(self.temperature, self.top_p)
        check_seed(self.seed)

    @classmethod
    def on_device(cls, device: str, rows: int | None = None, **others: Any) -> WriteSettings:
        """Settings with as many rows as suit a device, "cpu" or "cuda"."""
        return cls(rows=ROWS[device] if rows is None else rows, **others)

    @property
    def steps(self) -> int:
        """Tokens that a row has before its last sentence ends: fewer where few are asked for."""
        return min(self.stream, max(SHORTEST, -(-self.tokens // self.rows)))

    def stored(self) -> dict[str, Any]:
        """The settings that determine a text, as they are written to files."""
        return {**dataclasses.asdict(self), "stream": self.steps}


@dataclass(frozen=True)
class Labelling:
    """How the sampled tokens are labelled with states before training."""

    epochs: float = 1.0  # how many are trained with labels
    cluster_tokens: int = 1_000_000  # to find the clusters with, at most
    layer: int | None = None  # whose vectors are clustered; 0 is the embeddings, None two thirds up


def distillation_recipe(device: Literal["cpu", "cuda"]) -> Recipe:
    """The recipe that comes with the package for an HMM of sampled texts."""
    name = "distill-gpu.toml" if device == "cuda" else "distill-cpu.toml"
    with resources.as_file(resources.files("bighmm") / "recipes" / name) as path:
        return read_recipe(path)


def read_prompts(path: str | Path) -> tuple[str, ...]:
    """The prompts of a file, one on each line; ValueError if there are none."""
    lines = read_text(Path(path), pipes=True).splitlines()
    found = tuple(line for line in lines if line.strip())
    if not found:
        raise ValueError(f"{path} holds no prompts; it needs one on a line")
    return found
