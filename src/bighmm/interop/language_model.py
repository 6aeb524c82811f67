"""A Hugging Face causal language model: its tokenizer as one of this library, and its next tokens.

Ids mean the same to both. One end mark, the tokenizer's, stands for whatever ends a text; other
marks, and columns of the logits beyond the tokenizer, have no probability.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from bighmm.data.tokenizers import Subwords
from bighmm.interop.hugging_face import find_model, is_causal, load, marks_around

ROLE = "language model"


class LanguageModel:
    """A causal model on a device; ValueError with one sentence where there is none of that name."""

    def __init__(self, name: str, device: torch.device) -> None:
        self.place, self.device = find_model(name, ROLE), device
        self._theirs, self.model = load(self.place, device, head=True)
        if self._theirs.eos_token is None:
            raise ValueError(
                f"the {ROLE} {name} has no end mark (eos_token in tokenizer_config.json), so its "
                "texts would never end"
            )
        content = self._theirs.backend_tokenizer.to_str().encode()
        self.tokenizer = Subwords(content, end=self._theirs.eos_token, name=name)
        columns = self.model.get_output_embeddings().weight.shape[0]
        self._ends = torch.tensor(self._all_ends(columns), device=device)
        self._never = self._no_text(columns).to(device)
        self._takes = set(inspect.signature(self.model.forward).parameters)
        if not is_causal(lambda ids: self.model(input_ids=ids).logits, self.tokenizer.size, device):
            raise ValueError(
                f"the {ROLE} {name} is not causal: what it says of a token depends on those after"
            )

    @property
    def never_written(self) -> list[int]:
        """Ids that have no probability: marks, and ends other than the end mark."""
        never = self._never.index_fill(0, self._ends, True)[: self.tokenizer.size]
        return [id for id in torch.nonzero(never).squeeze(1).tolist() if id != self.tokenizer.end]

    def check_room(self, prompts: Sequence[Sequence[int]], length: int) -> None:
        """ValueError if a prompt and a text of `length` tokens are more than the model reads."""
        longest = getattr(self.model.config, "max_position_embeddings", None)
        needed = max(map(len, prompts)) + length
        if longest is not None and needed > longest:
            raise ValueError(
                f"the {ROLE} {self.place.name} reads {longest} tokens at most, and a prompt with a "
                f"text has up to {needed}; use a smaller --length or shorter prompts"
            )

    def prompt(self, text: str, chat: bool = False) -> list[int]:
        """The ids before a text: a prompt with the model's own mark, or as a user's turn."""
        if not chat:
            return marks_around(self._theirs)[0] + self._ids(text)
        if not self._theirs.chat_template:
            raise ValueError(f"the {ROLE} {self.place.name} has no chat template; leave out --chat")
        turns = [{"role": "user", "content": text}]
        whole = self._theirs.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        return self._ids(whole)

    def beginning(self) -> list[int]:
        """The ids before a text that follows nothing: the model's beginning mark."""
        for mark in (self._theirs.bos_token_id, self.model.config.bos_token_id):
            if mark is not None:
                return [mark]
        return [self.tokenizer.end]

    def forward(
        self, ids: Tensor, mask: Tensor, positions: Tensor, past: Any = None
    ) -> tuple[Tensor, Any]:
        """Logits (B, columns) float32 of the token after ids (B, T), and what they leave behind.

        mask (B, T and all before): 0 in the padding, which is on the left. positions (B, T).
        """
        given = {"position_ids": positions, "logits_to_keep": 1}
        made = self.model(
            input_ids=ids,
            attention_mask=mask,
            past_key_values=past,
            use_cache=True,
            **{name: value for name, value in given.items() if name in self._takes},
        )
        return made.logits[:, -1].float(), made.past_key_values

    def log_probs(self, logits: Tensor, temperature: float = 1.0) -> Tensor:
        """log p of the next token (B, columns); that of the end mark is that of all ends."""
        found = logits.masked_fill(self._never, -torch.inf)
        found = (found if temperature == 1 else found / temperature).log_softmax(1)
        if len(self._ends) > 1:
            ended = found.index_select(1, self._ends).logsumexp(1)
            found = found.index_fill(1, self._ends, -torch.inf)
            found[:, self.tokenizer.end] = ended
        return found

    def _ids(self, text: str) -> list[int]:
        return self._theirs(text, add_special_tokens=False)["input_ids"]

    def _all_ends(self, columns: int) -> list[int]:
        """The end mark, and what else ends a text: chat models often have a mark for a turn."""
        config = getattr(self.model, "generation_config", None)
        named = getattr(config, "eos_token_id", None)
        others = [named] if isinstance(named, int) else list(named or [])
        found = {self.tokenizer.end, *(id for id in others if 0 <= id < self.tokenizer.size)}
        return sorted(id for id in found if id < columns)

    def _no_text(self, columns: int) -> Tensor:
        """Whether an id (columns,) may not be in a text: marks, and ids without a token."""
        never = torch.arange(columns) >= self.tokenizer.size
        marks = [*self.tokenizer.ids_without_text, *self._theirs.all_special_ids]
        never[[mark for mark in marks if mark < columns]] = True
        never[self._ends.cpu()] = False
        return never


def prompts_of(lm: LanguageModel, prompts: Sequence[str], chat: bool) -> list[list[int]]:
    """What texts come after, in ids: each prompt, or the beginning mark if there are none."""
    if not prompts:
        if chat:
            raise ValueError("--chat puts a prompt through the model's template; give --prompt too")
        return [lm.beginning()]
    found = [lm.prompt(text, chat) for text in prompts]
    for text, ids in zip(prompts, found, strict=True):
        if not ids:
            raise ValueError(f"the prompt {text!r} holds no token; leave it out or give some words")
    return found


def left_padded(
    rows: Sequence[Sequence[int]], device: torch.device | str = "cpu"
) -> tuple[Tensor, Tensor]:
    """Ids (B, T) with 0 in the padding, which is on the left, and a mask (B, T) that is 0 there."""
    longest = max(map(len, rows))
    ids = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, given in enumerate(rows):
        ids[row, longest - len(given) :] = torch.tensor(given)
        mask[row, longest - len(given) :] = 1
    return ids.to(device), mask.to(device)
