"""Teachers: whatever gives every token of a text a vector that knows of its context.

- "random": random vectors of the tokens, mixed with those before; it needs no model.
- a saved network of this library (families transformer, lstm, feed-forward), or its run; its
  vocabulary must be the corpus'.
- a Hugging Face model, causal or bidirectional (`hugging_face`).

A teacher reads ids in windows that overlap, so that a token has a context wherever a window ends;
`read` cuts them.

Vectors are those after one of a transformer's layers. The last ones of a causal model are about the
next token and have half forgotten their own, which a state is to emit; `usual_layer` says which is
taken where nobody asks for another, and docs/log.md what that makes of a difference.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from bighmm.base.files import hashes, model_folder, read_json
from bighmm.data.tokenizers import Tokenizer
from bighmm.lm import baselines
from bighmm.lm.baselines.neural import NeuralLM
from bighmm.lm.baselines.transformer import Transformer


@dataclass(frozen=True, eq=False)
class Pieces:
    """A text as a teacher cuts it: ids, and the characters start … end-1 that each stands for."""

    ids: np.ndarray  # (N,) int64
    starts: np.ndarray  # (N,) int64, never falling
    ends: np.ndarray  # (N,) int64


class Teacher(Protocol):
    width: int  # H
    causal: bool  # whether a vector knows nothing of later tokens
    device: torch.device

    def description(self) -> dict[str, Any]:
        """What decides its vectors; JSON-serialisable."""
        ...

    def shares(self, tokenizer: Tokenizer) -> bool:
        """Whether ids of this vocabulary mean the same to it."""
        ...

    def cut(self, text: str) -> Pieces:
        """A text in its own ids; ValueError if it only reads those of a shared vocabulary."""
        ...

    def hidden(self, ids: Tensor) -> Tensor:
        """Vectors (B, T, H) of windows of ids (B, T), both on its device."""
        ...


@dataclass(frozen=True)
class Reading:
    """How a teacher reads: windows of tokens, of which so many are context and read twice."""

    window: int = 256
    context: int = 64

    def __post_init__(self) -> None:
        if not 0 <= self.context < self.window:
            raise ValueError(
                f"the context must be at least 0 and below the window, not {self.context} of "
                f"{self.window} tokens"
            )


def read(teacher: Teacher, ids: np.ndarray, reading: Reading) -> Tensor:
    """Vectors (N, H) float32 of ids (N,), read window by window; on the teacher's device.

    A causal teacher knows at least `context` tokens before each, a bidirectional one half as many
    on either side, except near the ends of the text.
    """
    count, window, context = len(ids), min(reading.window, len(ids)), reading.context
    step = reading.window - context
    before = context if teacher.causal else context // 2
    vectors = torch.empty(count, teacher.width, device=teacher.device)
    if count == 0:
        return vectors
    number = max(1, -(-(count - context) // step))
    begins = np.minimum(np.arange(number) * step, count - window)
    firsts = np.arange(number) * step + before  # what each window is kept for
    firsts[0] = 0
    lasts = np.append(firsts[1:], count)
    tokens = torch.from_numpy(ids.astype(np.int64)).unfold(0, window, 1)
    at_once = 8 if teacher.device.type == "cpu" else 64
    for group in np.split(np.arange(number), range(at_once, number, at_once)):
        windows = tokens[torch.from_numpy(begins[group])].to(teacher.device)
        hidden = teacher.hidden(windows).float()
        for i, found in zip(group, hidden, strict=True):
            vectors[firsts[i] : lasts[i]] = found[firsts[i] - begins[i] : lasts[i] - begins[i]]
    if not bool(torch.isfinite(vectors).all()):
        raise ValueError("the teacher gives vectors that are not finite; try another layer")
    return vectors


def usual_layer(layers: int, causal: bool) -> int:
    """After which of its layers a transformer's vectors know most of a token and its context."""
    return round(2 * layers / 3) if causal else layers


def find_layer(name: str, layer: int, layers: int) -> int:
    """Its number, 0 for the embeddings; `layer` may be counted from the end. Else ValueError."""
    if not -layers - 1 <= layer <= layers:
        raise ValueError(
            f"the teacher {name} has no layer {layer}; it has 0 (the embeddings) to {layers}, or "
            f"counted from the end -1 to {-layers - 1}"
        )
    return layer % (layers + 1)


def open_teacher(
    name: str,
    tokenizer: Tokenizer,
    *,
    layer: int | None = None,
    fresh: bool = False,
    seed: int = 1,
    device: torch.device | str = "cpu",
) -> Teacher:
    """The teacher of that name, for a corpus with this tokenizer.

    layer: whose vectors are taken, of a transformer; -1 is the last, 0 the embeddings. Without it
        the usual one.
    fresh: the same network with new random weights, which `seed` decides.

    Raises ValueError with one sentence where there is none, or it cannot be used so.
    """
    device = torch.device(device)
    if name == "random":
        if layer is not None:
            raise ValueError(f"random vectors have no --layer {layer}; leave it out")
        return RandomTeacher(tokenizer.size, seed=seed, device=device)
    path = Path(name).expanduser()
    folder = model_folder(path)
    if (folder / "config.json").is_file():
        config = read_json(folder / "config.json")
        if isinstance(config, dict) and "format" in config and "model_type" not in config:
            return NetworkTeacher(folder, layer=layer, fresh=fresh, seed=seed, device=device)
    from bighmm.interop.hugging_face import HuggingFaceTeacher, find_model

    return HuggingFaceTeacher(find_model(name), layer=layer, fresh=fresh, seed=seed, device=device)


class RandomTeacher:
    """h_t = Σ_i decay^i · e_{t-i}, with a fixed random vector e for every token."""

    causal = True
    DECAY, REACH = 0.5, 16

    def __init__(
        self, vocabulary_size: int, width: int = 64, *, seed: int = 1, device: torch.device
    ) -> None:
        self.width, self.seed, self.device = width, seed, device
        generator = torch.Generator().manual_seed(seed)
        self.words = torch.randn(vocabulary_size, width, generator=generator).to(device)

    def description(self) -> dict[str, Any]:
        return {"kind": "random", "width": self.width, "seed": self.seed}

    def shares(self, tokenizer: Tokenizer) -> bool:
        return len(self.words) == tokenizer.size

    def cut(self, text: str) -> Pieces:
        raise ValueError(f"this random teacher was made for a vocabulary of {len(self.words)}")

    def hidden(self, ids: Tensor) -> Tensor:
        words = self.words[ids]
        mixed = words.clone()
        for back in range(1, min(self.REACH, ids.shape[1])):
            mixed[:, back:] += self.DECAY**back * words[:, :-back]
        return mixed


class NetworkTeacher:
    """A saved network of this library: what it makes of the words up to each one."""

    causal = True

    def __init__(
        self, folder: Path, *, layer: int | None, fresh: bool, seed: int, device: torch.device
    ) -> None:
        config = read_json(folder / "config.json")
        family = config.get("family", "hmm")
        model = None if family == "hmm" else baselines.find(family).model
        if model is None or not issubclass(model, NeuralLM):
            raise ValueError(
                f"{folder} holds a model of family {family!r}, which has no vectors to learn from; "
                "a teacher must be a network"
            )
        lm = model.load(folder)
        if fresh:
            lm = model(lm.options, lm.tokenizer, seed)
        self.network, self.tokenizer = lm.to(device).params.eval(), lm.tokenizer
        self.folder, self.device = folder, device
        self.layer = self._find_layer(layer)
        self.width: int = self._hidden(torch.zeros(1, 1, dtype=torch.long, device=device)).shape[2]
        self._described = {
            "kind": family,
            "name": str(folder),
            "sha256": hashes(folder)["config.json"],  # it names the hash of the weights
            "fresh": seed if fresh else None,
            **({} if self.layer is None else {"layer": self.layer}),
        }

    def description(self) -> dict[str, Any]:
        return self._described

    def shares(self, tokenizer: Tokenizer) -> bool:
        return self.tokenizer.fingerprint() == tokenizer.fingerprint()

    def _find_layer(self, layer: int | None) -> int | None:
        if isinstance(self.network, Transformer):
            layers = self.network.backbone.config.layers
            if layer is None:
                return usual_layer(layers, self.causal)
            return find_layer(str(self.folder), layer, layers)
        if layer not in (None, -1):
            raise ValueError(
                f"the teacher {self.folder} is no transformer and has no --layer {layer}; leave it "
                "out"
            )
        return None

    def cut(self, text: str) -> Pieces:
        raise ValueError(
            f"the teacher {self.folder} has another vocabulary than the corpus; a network of this "
            "library can only teach on the vocabulary that it was trained on"
        )

    @torch.no_grad()
    def hidden(self, ids: Tensor) -> Tensor:
        return self._hidden(ids)

    def _hidden(self, ids: Tensor) -> Tensor:
        state = self.network.begin(len(ids), self.tokenizer.end)
        if isinstance(self.network, Transformer):
            return self.network.hidden(ids, state, None, self.layer)[0]
        return self.network.hidden(ids, state, None)[0]
