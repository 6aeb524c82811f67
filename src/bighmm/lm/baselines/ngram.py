"""The n-gram baseline: a Kneser-Ney model with its vocabulary, in one folder."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bighmm.base.arrays import as_tensor
from bighmm.data.corpus import Corpus
from bighmm.data.tokenizers import Tokenizer, Words
from bighmm.infer.sample import check_request, draw_token
from bighmm.infer.sequences import rectangular
from bighmm.lm.baselines import register
from bighmm.lm.baselines.arpa import read_arpa, read_arpa_with_words, write_arpa
from bighmm.lm.baselines.folders import read_config, write_config
from bighmm.lm.baselines.kneser_ney import SETTINGS, KneserNey
from bighmm.lm.evaluation import Evaluation, stream_of
from bighmm.lm.hub import OnHub
from bighmm.lm.options import NgramOptions
from bighmm.lm.protocol import Convention, MatmulDtype

FAMILY, MODEL = "ngram", "ngram"
NGRAMS = f"{MODEL}/{SETTINGS}"  # which has the hash of the tables


@register(FAMILY, NgramOptions)
class NgramLM(OnHub, tags=["ngram"]):
    """A Kneser-Ney model with its vocabulary."""

    convention: Convention = "reset"

    def __init__(self, options: NgramOptions, model: KneserNey, tokenizer: Tokenizer) -> None:
        self.options, self.model, self.tokenizer = options, model, tokenizer

    @classmethod
    def fit(cls, options: NgramOptions, corpus: Corpus) -> NgramLM:
        """The model of the training split of a corpus."""
        tokenizer = corpus.tokenizer
        model = KneserNey.fit(
            np.asarray(corpus.split("train")),
            tokenizer.size,
            tokenizer.end,
            options.order,
            options.discounts,
            corpus.documents("train"),
        )
        return cls(options, model, tokenizer)

    @classmethod
    def load(cls, folder: Path) -> NgramLM:
        """The model that `save_pretrained` wrote; ValueError if a file is missing or damaged."""
        options, tokenizer = read_config(folder, FAMILY, [NGRAMS], may_lack_hashes=True)
        model = KneserNey.load(folder / MODEL)
        if (model.vocabulary_size, model.end) != (tokenizer.size, tokenizer.end):
            raise ValueError(f"the n-grams in {folder} are not of its vocabulary")
        if model.order != options.order:
            raise ValueError(f"the n-grams in {folder} are of order {model.order}, not of its own")
        return cls(options, model, tokenizer)

    @classmethod
    def from_arpa(cls, path: str | Path, tokenizer: Tokenizer | None = None) -> NgramLM:
        """The model in an ARPA file (plain, .gz or .xz), however it was smoothed.

        tokenizer: one whose tokens are the words of the file. Without it the vocabulary is that of
            the file, and texts are split at spaces.

        Raises ValueError if the file cannot be opened, is not an ARPA file or has other words.
        """
        if tokenizer is None:
            model, words = read_arpa_with_words(path)
            tokenizer = Words(words)
        else:
            model = read_arpa(path, _strings(tokenizer), tokenizer.end, tokenizer.unknown)
        return cls(NgramOptions(order=model.order), model, tokenizer)

    def to_arpa(self, path: str | Path) -> None:
        """Write an ARPA file, packed if its name ends in .gz or .xz.

        Raises ValueError if a token is empty or has a space in it.
        """
        write_arpa(self.model, path, _strings(self.tokenizer), self.tokenizer.unknown)

    def _save_pretrained(self, save_directory: Path) -> None:
        self.model.save(save_directory / MODEL)
        write_config(save_directory, FAMILY, self.options, self.tokenizer, [NGRAMS])

    @property
    def num_parameters(self) -> int:
        """The number of probabilities (one per n-gram) and of backoff weights that are not 1."""
        return sum(
            len(level.log_probs) + int(np.count_nonzero(level.log_backoffs))
            for level in self.model.levels
        )

    @property
    def device(self) -> torch.device:
        """The CPU: the tables of n-grams are always in main memory."""
        return torch.device("cpu")

    def to(self, device: torch.device | str, matmul_dtype: MatmulDtype = "auto") -> NgramLM:
        """The model itself: it always stays on the CPU."""
        return self

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)

    def decode(self, ids: Any) -> str:
        return self.tokenizer.decode([int(i) for i in ids])

    def predictor(self) -> NgramPredictor:
        return NgramPredictor(self.model, self.tokenizer.end)

    def stepper(self) -> NgramStepper:
        return NgramStepper(self.model)

    def perplexity(
        self, corpus_or_ids: Any, *, split: str = "test", convention: Convention | None = None
    ) -> Evaluation:
        """The perplexity of a split of a corpus, or of token ids; every token counts.

        Raises ValueError for the convention "carry": contexts never reach over an end mark.
        """
        convention = convention or self.convention
        if convention != "reset":
            raise ValueError("an n-gram model carries nothing over an end mark; leave out --carry")
        vocabulary = self.tokenizer.fingerprint()
        tokens, documents, name = stream_of(corpus_or_ids, split, vocabulary)
        log_prob = float(self.model.log_probs(tokens, documents).sum())
        perplexity = math.exp(min(-log_prob / len(tokens), 700))
        return Evaluation(perplexity, log_prob, len(tokens), "reset", vocabulary, name)


class NgramPredictor:
    """Probabilities and samples of token ids, computed row by row."""

    def __init__(self, model: KneserNey, end: int | None) -> None:
        self.model, self.end = model, end

    def log_prob(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        found = [
            self.model.log_probs(row).sum() if len(row) else 0.0 for row in _rows(tokens, lengths)
        ]
        return torch.tensor(found, dtype=torch.float64)

    def token_log_probs(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """log p(x_t | x_1 … x_{t-1}) (B, T), 0 in the padding."""
        found = torch.zeros(tokens.shape, dtype=torch.float64)
        for number, row in enumerate(_rows(tokens, lengths)):
            if len(row):
                found[number, : len(row)] = torch.from_numpy(self.model.log_probs(row))
        return found

    def next_token(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        found = [self._next(row) for row in _rows(tokens, lengths)]
        return torch.from_numpy(np.stack(found)).log()

    def sample(
        self,
        n: int,
        length: int | None = None,
        prefix: Any = None,
        generator: torch.Generator | None = None,
        temperature: float = 1.0,
        max_length: int = 200,
    ) -> Tensor:
        check_request(n, length, max_length, temperature)
        rows = []
        for _ in range(n):
            row = [int(i) for i in ([] if prefix is None else prefix)]
            begun = len(row)
            while len(row) - begun < (max_length if length is None else length):
                row.append(self._draw(np.array(row, dtype=np.int64), generator, temperature))
                if length is None and row[-1] == self.end:
                    break
            rows.append(torch.tensor(row[begun:], dtype=torch.long))
        filled = self.end if self.end is not None else 0
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=filled)

    def _draw(self, row: np.ndarray, generator: torch.Generator | None, temperature: float) -> int:
        log_probs = torch.from_numpy(self._next(row)).log().unsqueeze(0)
        return int(draw_token(log_probs, temperature, generator))

    def _next(self, row: np.ndarray) -> np.ndarray:
        """p(next token | last sentence of a row) (V,)."""
        return self.model.next_probs(_last_sentence(row, self.end))


class NgramStepper:
    """The last words of many texts, as "history" (B, order - 1): see `next_probs_after`."""

    capturable = False
    device = torch.device("cpu")

    def __init__(self, model: KneserNey) -> None:
        self.model = model
        after_end = ([-1] * (model.order - 1) + [model.vocabulary_size])[1:]
        self.fresh = torch.tensor(after_end, dtype=torch.long)

    def begin(self, rows: int) -> dict[str, Tensor]:
        return {"history": self.fresh.repeat(rows, 1)}

    def state_after(self, rows: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        size = len(self.fresh)
        before = [-1] * size + [self.model.vocabulary_size]
        histories = []
        for row in rows:
            whole = [*before, *_last_sentence(np.asarray(row, dtype=np.int64), self.model.end)]
            histories.append(whole[len(whole) - size :])
        return {"history": torch.tensor(histories, dtype=torch.long).view(len(rows), size)}

    def predict(self, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        probs = self.model.next_probs_after(state["history"].numpy())
        return torch.from_numpy(probs).log(), state

    def after(self, state: dict[str, Tensor], tokens: Tensor) -> dict[str, Tensor]:
        history = torch.cat([state["history"], tokens.unsqueeze(1)], 1)[:, 1:]
        if self.model.end is not None:
            history = torch.where((tokens == self.model.end).unsqueeze(1), self.fresh, history)
        return {"history": history}


def _last_sentence(row: np.ndarray, end: int | None) -> np.ndarray:
    """What follows the last end mark of a row."""
    ends = np.flatnonzero(row == (-1 if end is None else end))
    return row[ends[-1] + 1 :] if len(ends) else row


def _strings(tokenizer: Tokenizer) -> list[str]:
    """The tokens in the order of their ids."""
    return [tokenizer.token(id) for id in range(tokenizer.size)]


def _rows(tokens: Tensor, lengths: Tensor | None) -> list[np.ndarray]:
    """The rows of token ids (B, T) as arrays, each up to its length."""
    tokens, lengths = rectangular(tokens, lengths)
    ids = as_tensor(tokens).long().numpy()
    sizes = [ids.shape[1]] * len(ids) if lengths is None else as_tensor(lengths).tolist()
    return [row[:size] for row, size in zip(ids, sizes, strict=True)]
