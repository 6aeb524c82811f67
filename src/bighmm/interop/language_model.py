"""Hugging Face causal language models: probabilities of the next token, and prompts.

The tokenizer has the ids of the model. All tokens that end a text count as one end mark, that of
the tokenizer. Other special tokens, and columns of the logits without a token, have probability 0.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bighmm.base.arrays import as_tensor
from bighmm.data.tokenizers import Subwords
from bighmm.interop.chat_template import user_turns
from bighmm.interop.hugging_face import find_model, is_causal, load, marks_around

ROLE = "language model"


class LanguageModel:
    """A causal language model on a device.

    name: as for `find_model`.

    Raises ValueError with one sentence if there is no such model, it has no end mark, or it is not
    causal.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self.place, self.device = find_model(name, ROLE), device
        self._hf_tokenizer, self.model = load(self.place, device, head=True)
        if self._hf_tokenizer.eos_token is None:
            raise ValueError(
                f"the {ROLE} {name} has no end mark (eos_token in tokenizer_config.json), so its "
                "texts would never end"
            )
        content = self._hf_tokenizer.backend_tokenizer.to_str().encode()
        self.tokenizer = Subwords(content, end=self._hf_tokenizer.eos_token, name=name)
        columns = self.model.get_output_embeddings().weight.shape[0]
        self._ends = torch.tensor(self._all_ends(columns), device=device)
        self._forget_generation_settings()
        self._never = self._without_text(columns).to(device)
        self._parameters = set(inspect.signature(self.model.forward).parameters)
        if not is_causal(lambda ids: self.model(input_ids=ids).logits, self.tokenizer.size, device):
            raise ValueError(
                f"the {ROLE} {name} is not causal: what it says of a token depends on those after"
            )

    @property
    def never_written(self) -> list[int]:
        """The ids with probability 0: special tokens, and ends of a text except the end mark."""
        never = self._never.index_fill(0, self._ends, True)[: self.tokenizer.size]
        return [id for id in torch.nonzero(never).squeeze(1).tolist() if id != self.tokenizer.end]

    def check_room(self, prompts: Sequence[Sequence[int]], length: int) -> None:
        """Raise ValueError if a prompt and a text of `length` tokens are too long for the model."""
        longest = getattr(self.model.config, "max_position_embeddings", None)
        needed = max(map(len, prompts)) + length
        if longest is not None and needed > longest:
            raise ValueError(
                f"the {ROLE} {self.place.name} reads {longest} tokens at most, and a prompt with a "
                f"text has up to {needed}; use a smaller --length or shorter prompts"
            )

    def prompt(self, text: str) -> list[int]:
        """The ids of a prompt, after the model's own mark."""
        return marks_around(self._hf_tokenizer)[0] + self._ids(text)

    def chat_prompts(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text as a user's turn of a chat.

        Raises ValueError if the model has no chat template, or it does not work.
        """
        if not self._hf_tokenizer.chat_template:
            raise ValueError(f"the {ROLE} {self.place.name} has no chat template; leave out --chat")
        try:
            template = self._hf_tokenizer.get_chat_template()
            whole = user_turns(template, texts, self._hf_tokenizer.special_tokens_map)
        except ValueError as error:
            reason = str(error).split("\n")[0]
            raise ValueError(
                f"the chat template of the {ROLE} {self.place.name} cannot be used: {reason}"
            ) from None
        return [self._ids(text) for text in whole]

    def beginning(self) -> list[int]:
        """The ids before a text without a prompt: the model's beginning mark, or the end mark."""
        for mark in (self._hf_tokenizer.bos_token_id, self.model.config.bos_token_id):
            if mark is not None:
                return [mark]
        return [self.tokenizer.end]

    def forward(
        self, ids: Tensor, mask: Tensor, positions: Tensor, past: Any = None
    ) -> tuple[Tensor, Any]:
        """Logits (B, columns) float32 of the token after ids (B, T), and the next cache.

        mask: (B, past and T) 0 in the padding, which is on the left.
        positions: (B, T) the positions of ids.
        past: the cache (keys and values) of the ids before.
        """
        optional = {"position_ids": positions, "logits_to_keep": 1}
        output = self.model(
            input_ids=ids,
            attention_mask=mask,
            past_key_values=past,
            use_cache=True,
            **{name: value for name, value in optional.items() if name in self._parameters},
        )
        return output.logits[:, -1].float(), output.past_key_values

    def log_probs(self, logits: Tensor, temperature: float = 1.0) -> Tensor:
        """log p of the next token (B, columns); the end mark has the probability of all ends."""
        result = logits.masked_fill(self._never, -torch.inf)
        result = (result if temperature == 1 else result / temperature).log_softmax(1)
        if len(self._ends) > 1:
            log_end = result.index_select(1, self._ends).logsumexp(1)
            result = result.index_fill(1, self._ends, -torch.inf)
            result[:, self.tokenizer.end] = log_end
        return result

    def _ids(self, text: str) -> list[int]:
        return self._hf_tokenizer(text, add_special_tokens=False)["input_ids"]

    def _all_ends(self, columns: int) -> list[int]:
        """All ids that end a text: the end mark and, in many chat models, the end of a turn."""
        config = getattr(self.model, "generation_config", None)
        named = getattr(config, "eos_token_id", None)
        others = [named] if isinstance(named, int) else list(named or [])
        ends = {self.tokenizer.end, *(id for id in others if 0 <= id < self.tokenizer.size)}
        return sorted(id for id in ends if id < columns)

    def _forget_generation_settings(self) -> None:
        """Keep none of generation_config.json: penalties, and searches whose code is on the hub."""
        config = getattr(self.model, "generation_config", None)
        if config is not None:
            self.model.generation_config = type(config)()

    def _without_text(self, columns: int) -> Tensor:
        """Whether an id (columns,) has no text: special tokens, and columns without a token."""
        never = torch.arange(columns) >= self.tokenizer.size
        marks = [*self.tokenizer.ids_without_text, *self._hf_tokenizer.all_special_ids]
        never[[mark for mark in marks if mark < columns]] = True
        never[self._ends.cpu()] = False
        return never


def prompts_of(lm: LanguageModel, prompts: Sequence[str], chat: bool) -> list[list[int]]:
    """The ids of each prompt; of the beginning mark alone if there are no prompts.

    chat: whether prompts are a user's turns.

    Raises ValueError for an empty prompt, and for a chat without prompts.
    """
    if not prompts:
        if chat:
            raise ValueError("--chat puts a prompt through the model's template; give --prompt too")
        return [lm.beginning()]
    encoded = lm.chat_prompts(prompts) if chat else [lm.prompt(text) for text in prompts]
    for text, ids in zip(prompts, encoded, strict=True):
        if not ids:
            raise ValueError(f"the prompt {text!r} holds no token; leave it out or give some words")
    return encoded


def left_padded(
    rows: Sequence[Sequence[int]], device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Ids (B, T) padded with 0 on the left, and a mask (B, T) that is 0 in the padding."""
    longest = max(map(len, rows))
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        ids[number, longest - len(row) :] = as_tensor(row)
        mask[number, longest - len(row) :] = 1
    return ids.to(device), mask.to(device)
