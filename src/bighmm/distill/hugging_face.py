"""Hugging Face models as teachers, causal or bidirectional; needs the extra `bighmm[teachers]`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from bighmm.data.tokenizers import Tokenizer
from bighmm.distill.teachers import Pieces, checked_layer, default_layer
from bighmm.interop.hugging_face import Place, is_causal, load, marks_around


class HuggingFaceTeacher:
    """A network whose vectors are its hidden states after a layer.

    The special tokens that its tokenizer puts around a text are put around every window.
    """

    def __init__(
        self, place: Place, *, layer: int | None, fresh: bool, seed: int, device: torch.device
    ) -> None:
        self.place, self.device = place, device
        self.fresh = seed if fresh else None
        self._shared: tuple[Tokenizer, bool] | None = None  # cached result of shares_vocabulary
        self._tokenizer, self._model = load(place, device, fresh=self.fresh)
        config = self._model.config
        if getattr(config, "is_encoder_decoder", False):
            raise ValueError(
                f"the teacher {place.name} is an encoder with a decoder; a causal or a "
                "bidirectional model is needed"
            )
        self.width: int = config.hidden_size
        layers: int = config.num_hidden_layers
        self.layer = layers if layer is None else checked_layer(place.name, layer, layers)
        self._before, self._after = marks_around(self._tokenizer)
        self.causal = is_causal(self.hidden, len(self._tokenizer), device)
        if layer is None:  # the default depends on `causal`, which the last layer has shown
            self.layer = default_layer(layers, self.causal)

    def description(self) -> dict[str, Any]:
        return {
            "kind": "hugging-face",
            "name": self.place.name,
            "files": self.place.hashes(),
            "layer": self.layer,
            "fresh": self.fresh,
            "dtype": str(self._model.dtype).removeprefix("torch."),
        }

    def shares_vocabulary(self, tokenizer: Tokenizer) -> bool:
        """Whether every id of a tokenizer is the same token here."""
        if self._shared is None or self._shared[0] is not tokenizer:
            self._shared = tokenizer, self._same_tokens(tokenizer)
        return self._shared[1]

    def tokenize(self, text: str) -> Pieces:
        encoding = self._tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        offsets = np.array(encoding["offset_mapping"], np.int64).reshape(-1, 2)
        return Pieces(np.array(encoding["input_ids"], np.int64), offsets[:, 0], offsets[:, 1])

    @property
    def longest(self) -> int | None:
        """The most tokens of a window, without the special tokens; None if there is no limit."""
        positions = getattr(self._model.config, "max_position_embeddings", None)
        return None if positions is None else positions - len(self._before) - len(self._after)

    def hidden(self, ids: Tensor) -> Tensor:
        """Vectors (B, T, H) of windows of ids (B, T); ValueError if they are too long."""
        before, after = len(self._before), len(self._after)
        if self.longest is not None and ids.shape[1] > self.longest:
            raise ValueError(
                f"the teacher {self.place.name} reads {self.longest + before + after} tokens at "
                f"most, its own marks counted; a window of {ids.shape[1]} is too long"
            )
        around = (torch.tensor(marks, device=ids.device) for marks in (self._before, self._after))
        first, last = (marks.long().expand(len(ids), -1) for marks in around)
        whole = torch.cat([first, ids, last], 1)
        with torch.inference_mode():
            output = self._model(
                input_ids=whole,
                attention_mask=torch.ones_like(whole),
                output_hidden_states=True,
            )
        return output.hidden_states[self.layer][:, before : before + ids.shape[1]]

    def _same_tokens(self, tokenizer: Tokenizer) -> bool:
        if tokenizer.size > len(self._tokenizer):
            return False
        own = self._tokenizer.convert_ids_to_tokens(list(range(tokenizer.size)))
        return all(token == tokenizer.token(i) for i, token in enumerate(own))
