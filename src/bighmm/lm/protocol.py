"""What every language model of this library offers, whatever its family.

An `LM` is a model with its vocabulary: `HMMLM` and each of the baselines. Its `predictor()` answers
questions about token ids; an `HMM` is a `Predictor`. Questions about text are functions of an `LM`
in `questions`, `gaps` and `evaluation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from bighmm.lm.options import Convention

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from bighmm.data.tokenizers import Tokenizer
    from bighmm.lm.evaluation import Evaluation

MatmulDtype = Literal["auto", "float32", "bfloat16"]


class Predictor(Protocol):
    """Answers about rows of token ids, (B, T) with padding on the right."""

    @property
    def end(self) -> int | None:
        """The id of the end mark."""
        ...

    def log_prob(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """log p (B,) of each row, up to its length (B,)."""
        ...

    def token_log_probs(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """log p (B, T) of every token given those before it in its row, 0 in the padding."""
        ...

    def next_token(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """log p (B, V) of the token after each row."""
        ...

    def sample(
        self,
        n: int,
        length: int | None = None,
        prefix: Sequence[int] | None = None,
        generator: torch.Generator | None = None,
        temperature: float = 1.0,
        max_length: int = ...,
    ) -> Tensor:
        """n samples (n, L) of what follows `prefix`.

        With `length`, L is exactly that. Without it a row runs to its end mark, or is cut at
        `max_length` tokens, and is padded with end marks. See `HMM.sample`.
        """
        ...


class LM(Protocol):
    """A language model: a predictor with its vocabulary."""

    tokenizer: Tokenizer
    convention: Convention  # that `perplexity` uses if none is given

    @property
    def num_parameters(self) -> int:
        """How many numbers the model is made of."""
        ...

    @property
    def device(self) -> torch.device:
        """Where questions are answered."""
        ...

    def to(self, device: torch.device | str, matmul_dtype: MatmulDtype = "auto") -> LM:
        """The same model, moved to a device."""
        ...

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; a line break is the end mark."""
        ...

    def decode(self, ids: Any) -> str:
        """The text of token ids."""
        ...

    def predictor(self) -> Predictor:
        """The model as a predictor of token ids."""
        ...

    def perplexity(
        self, corpus_or_ids: Any, *, split: str = "test", convention: Convention | None = ...
    ) -> Evaluation:
        """Perplexity of a corpus' split, of a stream of token ids, or of a list of such rows.

        convention: without one, the model's own.
        """
        ...

    def save_pretrained(self, save_directory: Path) -> Any:
        """Write the model into a folder that `open_model` reads."""
        ...
