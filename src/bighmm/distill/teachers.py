"""Teachers: models that give every token of a text a vector that depends on its context.

- "random": random vectors of the tokens, mixed with those of the tokens before; needs no model.
- a saved network of this library (families transformer, lstm, feed-forward), or its run; it must
  have the vocabulary of the corpus.
- a Hugging Face model, causal or bidirectional (`distill.hugging_face`).

`teacher_vectors` lets a teacher read a long text in windows. They overlap, so that tokens near the
border of a window have a context too.

The vectors of a transformer are those after one of its layers. In a causal model, the last layers
describe the next token more than the token itself, which the state has to emit. `default_layer` is
the layer that is taken by default; docs/log.md has the effect of the layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from bighmm.base.files import hashes, model_folder
from bighmm.base.json_files import read_object
from bighmm.data.tokenizers import Tokenizer
from bighmm.lm import baselines
from bighmm.lm.baselines.neural import NeuralLM
from bighmm.lm.baselines.transformer import Transformer


@dataclass(frozen=True, eq=False)
class Pieces:
    """A text in the tokens of a teacher; piece i has the characters starts[i] … ends[i]-1."""

    ids: np.ndarray  # (N,) int64
    starts: np.ndarray  # (N,) int64, not decreasing
    ends: np.ndarray  # (N,) int64


class Teacher(Protocol):
    """A model that gives tokens vectors."""

    width: int  # H
    causal: bool  # whether a vector does not depend on later tokens
    device: torch.device

    def description(self) -> dict[str, Any]:
        """Everything that determines the vectors, JSON-serialisable."""
        ...

    def shares_vocabulary(self, tokenizer: Tokenizer) -> bool:
        """Whether the ids of this tokenizer are also ids of the teacher, with the same meaning."""
        ...

    def tokenize(self, text: str) -> Pieces:
        """A text in the teacher's own tokens; ValueError if it has no tokenizer of its own."""
        ...

    def hidden(self, ids: Tensor) -> Tensor:
        """Vectors (B, T, H) of windows of ids (B, T), both on the teacher's device."""
        ...


@dataclass(frozen=True)
class Reading:
    """The windows in which a teacher reads a text."""

    window: int = 256  # tokens of a window
    context: int = 64  # tokens that are also in the window before, as context

    def __post_init__(self) -> None:
        if not 0 <= self.context < self.window:
            raise ValueError(
                f"the context must be at least 0 and below the window, not {self.context} of "
                f"{self.window} tokens"
            )


def teacher_vectors(teacher: Teacher, ids: np.ndarray, reading: Reading) -> Tensor:
    """Vectors (N, H) float32 of ids (N,), read window by window; on the teacher's device.

    Except near the ends of the text, a vector of a causal teacher depends on at least `context`
    tokens before the token, that of a bidirectional one on half as many on either side.

    Raises ValueError if a vector is not finite.
    """
    count, window, context = len(ids), min(reading.window, len(ids)), reading.context
    step = reading.window - context
    before = context if teacher.causal else context // 2
    vectors = torch.empty(count, teacher.width, device=teacher.device)
    if count == 0:
        return vectors
    number = max(1, -(-(count - context) // step))
    begins = np.minimum(np.arange(number) * step, count - window)
    firsts = np.arange(number) * step + before  # the first token whose vector a window gives
    firsts[0] = 0
    lasts = np.append(firsts[1:], count)
    tokens = torch.from_numpy(ids.astype(np.int64)).unfold(0, window, 1)
    at_once = 8 if teacher.device.type == "cpu" else 64
    for group in np.split(np.arange(number), range(at_once, number, at_once)):
        windows = tokens[torch.from_numpy(begins[group])].to(teacher.device)
        hidden = teacher.hidden(windows).float()
        for i, rows in zip(group, hidden, strict=True):
            vectors[firsts[i] : lasts[i]] = rows[firsts[i] - begins[i] : lasts[i] - begins[i]]
    if not bool(torch.isfinite(vectors).all()):
        raise ValueError("the teacher gives vectors that are not finite; try another layer")
    return vectors


def default_layer(layers: int, causal: bool) -> int:
    """The layer whose vectors are taken by default, of a transformer with so many layers."""
    return round(2 * layers / 3) if causal else layers


def checked_layer(name: str, layer: int, layers: int) -> int:
    """The number of a layer, 0 for the embeddings; negative numbers count from the end.

    Raises ValueError if the teacher `name` with so many `layers` does not have it.
    """
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
    """The teacher `name` (see above), for a corpus with this tokenizer.

    layer: the layer of a transformer whose vectors are taken; -1 is the last one, 0 the embeddings.
        By default `default_layer`.
    fresh: whether the network gets new random weights, drawn with `seed`.

    Raises ValueError with one sentence if there is no such teacher, or it has no such layer.
    """
    device = torch.device(device)
    if name == "random":
        if layer is not None:
            raise ValueError(f"random vectors have no --layer {layer}; leave it out")
        return RandomTeacher(tokenizer, seed=seed, device=device)
    path = Path(name).expanduser()
    folder = model_folder(path)
    if (folder / "config.json").is_file():
        config = read_object(folder / "config.json")
        if "format" in config and "model_type" not in config:
            return NetworkTeacher(folder, layer=layer, fresh=fresh, seed=seed, device=device)
    from bighmm.distill.hugging_face import HuggingFaceTeacher
    from bighmm.interop.hugging_face import find_model

    return HuggingFaceTeacher(find_model(name), layer=layer, fresh=fresh, seed=seed, device=device)


class RandomTeacher:
    """h_t = Σ_{i < reach} decay^i e_{t-i}, with a fixed random vector e for every token."""

    causal = True
    DECAY, REACH = 0.5, 16

    def __init__(
        self, tokenizer: Tokenizer, width: int = 64, *, seed: int = 1, device: torch.device
    ) -> None:
        self.width, self.seed, self.device = width, seed, device
        self._vocabulary = tokenizer.fingerprint()
        generator = torch.Generator().manual_seed(seed)
        self.words = torch.randn(tokenizer.size, width, generator=generator).to(device)

    def description(self) -> dict[str, Any]:
        return {"kind": "random", "width": self.width, "seed": self.seed}

    def shares_vocabulary(self, tokenizer: Tokenizer) -> bool:
        return self._vocabulary == tokenizer.fingerprint()

    def tokenize(self, text: str) -> Pieces:
        raise ValueError("this random teacher was made for another vocabulary")

    def hidden(self, ids: Tensor) -> Tensor:
        words = self.words[ids]
        mixed = words.clone()
        for back in range(1, min(self.REACH, ids.shape[1])):
            mixed[:, back:] += self.DECAY**back * words[:, :-back]
        return mixed


class NetworkTeacher:
    """A saved network of this library; the vector of a word depends on it and the words before."""

    causal = True

    def __init__(
        self, folder: Path, *, layer: int | None, fresh: bool, seed: int, device: torch.device
    ) -> None:
        family = read_object(folder / "config.json").get("family", "hmm")
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
        self._description = {
            "kind": family,
            "name": str(folder),
            "sha256": hashes(folder)["config.json"],  # the file has the hash of the weights
            "fresh": seed if fresh else None,
            **({} if self.layer is None else {"layer": self.layer}),
        }

    def description(self) -> dict[str, Any]:
        return self._description

    def shares_vocabulary(self, tokenizer: Tokenizer) -> bool:
        return self.tokenizer.fingerprint() == tokenizer.fingerprint()

    def _find_layer(self, layer: int | None) -> int | None:
        """The number of the layer; None for networks that are not transformers."""
        if isinstance(self.network, Transformer):
            layers = self.network.backbone.config.layers
            if layer is None:
                return default_layer(layers, self.causal)
            return checked_layer(str(self.folder), layer, layers)
        if layer not in (None, -1):
            raise ValueError(
                f"the teacher {self.folder} is no transformer and has no --layer {layer}; leave it "
                "out"
            )
        return None

    def tokenize(self, text: str) -> Pieces:
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
