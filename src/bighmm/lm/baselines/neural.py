"""Neural baselines of Chiu & Rush 2020: a feed-forward n-gram model and an LSTM, with tied weights.

Both predict a word from the previous word and a state: the words before it, or the vectors of the
LSTM. The end mark stands for the word before the first. Training and, by default, evaluation carry
the state over end marks ("carry"); with "reset" every sentence begins with a new state.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from bighmm.base import randomness
from bighmm.base.arrays import as_tensor
from bighmm.base.shapes import shapes_of
from bighmm.base.tensor_files import TensorFile, check_state, load_state, write_tensors
from bighmm.data.tokenizers import Tokenizer
from bighmm.infer.sample import check_request, draw_token
from bighmm.infer.sequences import rectangular
from bighmm.lm.baselines import register
from bighmm.lm.baselines.folders import read_config, write_config
from bighmm.lm.evaluation import Evaluation, stream_of, sum_over_sentences
from bighmm.lm.hub import WEIGHTS, OnHub
from bighmm.lm.options import FeedForwardOptions, LSTMOptions
from bighmm.lm.protocol import Convention, MatmulDtype
from bighmm.model.networks.backbone import MOST_LAYERS
from bighmm.ops import memory as limits

ROWS_AT_ONCE, WINDOW = 64, 256
MOST_WORDS = 1 << 16  # that a word may be predicted from

State = dict[str, Tensor]  # the first dimension of every tensor is the batch


class Network(nn.Module):
    """A network with word embeddings that are also its output weights.

    Subclasses implement `begin` and `hidden`.
    """

    memory: int | None = None  # number of previous words that a prediction depends on; None: all

    def __init__(
        self, vocabulary_size: int, width: int, dropout: float, init_scale: float = 1.0
    ) -> None:
        super().__init__()
        self.words = nn.Parameter(torch.empty(vocabulary_size, width))
        most = init_scale / math.sqrt(width)
        nn.init.uniform_(self.words, -most, most)
        self.dropout = dropout
        self.split: tuple[int, int] | None = None  # rows here are some: the first one, of how many

    def begin(self, rows: int, end: int) -> State:
        """The state before the first word, for B rows."""
        raise NotImplementedError

    def hidden(self, previous: Tensor, state: State, key: Tensor | None) -> tuple[Tensor, State]:
        """Vectors (B, T, H) that predict the words after `previous` (B, T), and the next state."""
        raise NotImplementedError

    def forward(
        self, previous: Tensor, state: State, key: Tensor | None = None
    ) -> tuple[Tensor, State]:
        """Logits (B, T, V) of the words after `previous` (B, T), and the next state.

        key: () int64, see `base.randomness`; dropout is a function of it. None: no dropout.
        """
        hidden, state = self.hidden(previous, state, key)
        return self.logits(self.drop(hidden, key, 0)), state

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits (B, T, V) of the words that vectors (B, T, H) predict."""
        return functional.linear(hidden, self.words)

    def penalty(self, hidden: Tensor, dropped: Tensor, inside: Tensor) -> Tensor | None:
        """What training adds to the nats per token of a window; None for nothing.

        hidden, dropped: (B, T, H) what `hidden` returned, and the same with dropout.
        inside: (B, T) bool, False in the padding.
        """
        return None

    def embed(self, tokens: Tensor, key: Tensor | None) -> Tensor:
        """The embeddings (B, T, H) of tokens (B, T), with dropout if there is a key."""
        return self.drop(functional.embedding(tokens, self.words), key, 1)

    def drop(self, x: Tensor, key: Tensor | None, place: int) -> Tensor:
        """x with dropout; the mask is a function of the key and of the `place` in the network."""
        if key is None or self.dropout == 0:
            return x
        before = 0 if self.split is None else self.split[0] * x[0].numel()
        drawn = randomness.scrambled(key + place) + before
        noise = randomness.noise(drawn, x.numel()).view(x.shape)
        kept = noise >= round((self.dropout - 0.5) * 2**63) * 2  # noise is in -2^63 … 2^63 - 1
        return torch.where(kept, x / (1 - self.dropout), 0.0)


class FeedForward(Network):
    """A feed-forward network over the last order - 1 words; its state is all but the last one."""

    memory: int

    def __init__(self, options: FeedForwardOptions, vocabulary_size: int) -> None:
        super().__init__(vocabulary_size, options.width, options.dropout)
        self.memory = options.order - 1
        widths = [self.memory * options.width] + [options.width] * options.layers
        self.layers = nn.ModuleList(
            nn.Linear(before, after) for before, after in itertools.pairwise(widths)
        )

    def begin(self, rows: int, end: int) -> State:
        return {"tokens": torch.full((rows, self.memory - 1), end, device=self.words.device)}

    def hidden(self, previous: Tensor, state: State, key: Tensor | None) -> tuple[Tensor, State]:
        tokens = torch.cat([state["tokens"], previous], dim=1)
        hidden = self.embed(tokens, key).unfold(1, self.memory, 1).flatten(2)  # (B, T, H · words)
        for layer in self.layers:
            hidden = layer(hidden).relu()
        return hidden, {"tokens": tokens[:, tokens.shape[1] - self.memory + 1 :]}


class LSTM(Network):
    """Layers of LSTMs; the state is the output and the cell of each layer, (B, layers, H)."""

    def __init__(self, options: LSTMOptions, vocabulary_size: int) -> None:
        super().__init__(vocabulary_size, options.width, options.dropout, options.init_scale)
        self.layers = nn.ModuleList(
            nn.LSTM(options.width, options.width, batch_first=True) for _ in range(options.layers)
        )

    def begin(self, rows: int, end: int) -> State:
        zeros = self.words.new_zeros(rows, len(self.layers), self.words.shape[1])
        return {"output": zeros, "cell": zeros}

    def hidden(self, previous: Tensor, state: State, key: Tensor | None) -> tuple[Tensor, State]:
        x = self.embed(previous, key)
        outputs, cells = [], []
        for i, layer in enumerate(self.layers):
            before = tuple(state[n][:, i].unsqueeze(0).contiguous() for n in ("output", "cell"))
            x, (output, cell) = layer(x if i == 0 else self.drop(x, key, 1 + i), before)
            outputs.append(output.squeeze(0))
            cells.append(cell.squeeze(0))
        return x, {"output": torch.stack(outputs, 1), "cell": torch.stack(cells, 1)}


class NeuralLM(OnHub, tags=["neural-language-model"]):
    """A network with its vocabulary, trained in steps (see `train.losses`)."""

    family: str
    convention: Convention = "carry"
    network: Callable[[Any, int], Network]

    def __init__(self, options: Any, tokenizer: Tokenizer, seed: int | None = None) -> None:
        _check(options)
        with torch.random.fork_rng():
            if seed is not None:
                torch.manual_seed(seed)
            self.params = type(self).network(options, tokenizer.size)
        self.options, self.tokenizer = options, tokenizer

    @property
    def end(self) -> int:
        return self.tokenizer.end if self.tokenizer.end is not None else 0

    @property
    def device(self) -> torch.device:
        return self.params.words.device

    @property
    def num_parameters(self) -> int:
        """The number of trained parameters."""
        return sum(p.numel() for p in self.params.parameters())

    def to(self, device: torch.device | str, matmul_dtype: MatmulDtype = "auto") -> NeuralLM:
        """Move to a device and return the model; matrix products are always in float32."""
        self.params.to(device)
        return self

    def clear_cache(self) -> None:
        """Does nothing, because this model caches nothing."""

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)

    def decode(self, ids: Any) -> str:
        return self.tokenizer.decode([int(i) for i in ids])

    def predictor(self) -> NeuralPredictor:
        return NeuralPredictor(self.params, self.end, self.tokenizer.end)

    def stepper(self) -> NeuralStepper:
        return NeuralStepper(self.params, self.end)

    def perplexity(
        self, corpus_or_ids: Any, *, split: str = "test", convention: Convention | None = None
    ) -> Evaluation:
        """The perplexity of a split of a corpus, or of token ids; every token counts."""
        vocabulary = self.tokenizer.fingerprint()
        tokens, documents, name = stream_of(corpus_or_ids, split, vocabulary)
        if len(tokens) == 0:
            raise ValueError("perplexity needs at least one token")
        predictor = self.predictor()
        convention = convention or self.convention
        if convention == "carry":
            stream = torch.from_numpy(np.asarray(tokens).astype(np.int64))
            log_prob = float(predictor.log_prob_of_stream(stream))
        else:
            log_prob = sum_over_sentences(predictor, np.asarray(tokens), documents, ROWS_AT_ONCE)
        perplexity = math.exp(min(-log_prob / len(tokens), 700))
        return Evaluation(perplexity, log_prob, len(tokens), convention, vocabulary, name)

    def _save_pretrained(self, save_directory: Path) -> None:
        write_tensors(save_directory / WEIGHTS, self.params.state_dict())
        write_config(save_directory, self.family, self.options, self.tokenizer, [WEIGHTS])

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The model that `save_pretrained` wrote; ValueError if a file is missing or damaged."""
        options, tokenizer = read_config(folder, cls.family, [WEIGHTS])
        tensors = TensorFile(folder / WEIGHTS)
        names = {name: name for name in tensors}
        try:
            # Sizes are compared before there is memory for them.
            check_state(shapes_of(lambda: cls(options, tokenizer).params), tensors, names)
            lm = cls(options, tokenizer)
            load_state(lm.params, tensors, names)
            first = lm.predictor().next_token(torch.zeros(1, 0, dtype=torch.long))
            if not bool(first.logsumexp(1).isfinite()):
                raise ValueError("its parameters are so large that they give no probabilities")
        except (RuntimeError, ValueError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"{folder / WEIGHTS} is damaged: {reason}") from None
        return lm


@register("feed-forward", FeedForwardOptions)
class FeedForwardLM(NeuralLM):
    family, network = "feed-forward", FeedForward


@register("lstm", LSTMOptions)
class LSTMLM(NeuralLM):
    family, network = "lstm", LSTM


class NeuralPredictor:
    """Probabilities and samples of token ids, computed in windows that fit in memory.

    first: the word before the first word of a text.
    end: the end mark, at which samples end.
    """

    def __init__(self, network: Network, first: int, end: int | None) -> None:
        self.network, self.first, self.end = network, first, end

    @torch.no_grad()
    def log_prob(
        self, tokens: Tensor, lengths: Tensor | None = None, after: Tensor | int = 0
    ) -> Tensor:
        """log p (B,) of each row; its first `after` (B, 1) tokens are only conditioned on."""
        ids, lengths = self._read(tokens, lengths)
        places = torch.arange(ids.shape[1], device=ids.device)
        counted = (places >= after) & (places < lengths.unsqueeze(1))
        return (self._each(ids) * counted).sum(1)

    @torch.no_grad()
    def token_log_probs(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """log p(x_t | x_1 … x_{t-1}) (B, T), 0 in the padding."""
        ids, lengths = self._read(tokens, lengths)
        places = torch.arange(ids.shape[1], device=ids.device)
        return self._each(ids) * (places < lengths.unsqueeze(1))

    def _each(self, ids: Tensor) -> Tensor:
        """log p (B, T) of every token of the rows, padding included."""
        found = torch.zeros(ids.shape, dtype=torch.float64, device=ids.device)
        for begin, log_probs, _ in self._windows(ids):
            words = ids[:, begin : begin + log_probs.shape[1]]
            each = log_probs.gather(2, words.unsqueeze(2)).squeeze(2)
            found[:, begin : begin + words.shape[1]] = each.double()
        return found

    def log_prob_of_stream(self, tokens: Tensor) -> Tensor:
        """log p () of one long row (T,).

        If a prediction depends on a limited number of words, the row is cut into parts that are
        computed as a batch, each with the words before it that its first word depends on.
        """
        tokens, memory = tokens.to(self.network.words.device), self.network.memory
        if memory is None:
            return self.log_prob(tokens.unsqueeze(0)).sum()
        fit = limits.LOGITS // (WINDOW * len(self.network.words))
        part = max(WINDOW, memory, math.ceil(len(tokens) / max(1, min(fit, ROWS_AT_ONCE))))
        begins = torch.arange(0, len(tokens), part, device=tokens.device)
        after = begins.clamp(max=memory)
        ends = (begins + part).clamp(max=len(tokens))
        places = (begins - after).unsqueeze(1) + torch.arange(memory + part, device=tokens.device)
        rows = tokens[places.clamp(max=len(tokens) - 1)]
        return self.log_prob(rows, ends - begins + after, after.unsqueeze(1)).sum()

    @torch.no_grad()
    def next_token(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        ids, lengths = self._read(tokens, lengths)
        rows = []
        for row, length in zip(ids, lengths.tolist(), strict=True):
            padded = torch.cat([row[:length], row.new_zeros(1)]).unsqueeze(0)
            *_, (_, log_probs, _) = self._windows(padded)
            rows.append(log_probs[0, -1])
        return torch.stack(rows)

    @torch.no_grad()
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
        device = self.network.words.device
        given = [] if prefix is None else [int(id) for id in prefix]
        start = torch.tensor([self.first, *given], device=device)
        logits, state = self.network(start.expand(n, -1), self.network.begin(n, self.first))
        drawn: list[Tensor] = []
        over = torch.zeros(n, dtype=torch.bool, device=device)
        while len(drawn) < (max_length if length is None else length):
            words = draw_token(logits[:, -1].log_softmax(1), temperature, generator)
            if length is None and self.end is not None:
                words = torch.where(over, self.end, words)
                over |= words == self.end
            drawn.append(words)
            if bool(over.all()):
                break
            logits, state = self.network(words.unsqueeze(1), state)
        return torch.stack(drawn, 1) if drawn else start.new_zeros(n, 0)

    def _read(self, tokens: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
        """Token ids (B, T) and lengths (B,) on the network's device; ValueError for wrong ids."""
        tokens, lengths = rectangular(tokens, lengths)
        ids = as_tensor(tokens).to(self.network.words.device).long()
        if lengths is None:
            lengths = torch.full((len(ids),), ids.shape[1])
        size = len(self.network.words)
        if ids.numel() and not 0 <= int(ids.min()) <= int(ids.max()) < size:
            raise ValueError(f"a token id is not in the vocabulary: ids go from 0 to {size - 1}")
        return ids, as_tensor(lengths).to(ids.device)

    def _windows(self, ids: Tensor) -> Any:
        """(first position, log p (B, T, V) of words at its positions, next state) by window."""
        first = ids.new_full((len(ids), 1), self.first)
        previous = torch.cat([first, ids[:, :-1]], dim=1) if ids.shape[1] else ids
        state = self.network.begin(len(ids), self.first)
        for begin in range(0, ids.shape[1], WINDOW):
            logits, state = self.network(previous[:, begin : begin + WINDOW], state)
            yield begin, logits.log_softmax(2), state


class NeuralStepper:
    """The states of a network for many texts, each with its last word as "last".

    first: the word before the first word of a text.
    """

    def __init__(self, network: Network, first: int) -> None:
        self.network, self.first = network, first

    @property
    def device(self) -> torch.device:
        return self.network.words.device

    @property
    def capturable(self) -> bool:
        return self.network.words.is_cuda

    def begin(self, rows: int) -> State:
        last = torch.full((rows,), self.first, device=self.device)
        return {**self.network.begin(rows, self.first), "last": last}

    def predict(self, state: State) -> tuple[Tensor, State]:
        inner = {name: tensor for name, tensor in state.items() if name != "last"}
        logits, inner = self.network(state["last"].unsqueeze(1), inner)
        return logits.squeeze(1).log_softmax(1), inner

    def after(self, state: State, tokens: Tensor) -> State:
        return {**state, "last": tokens}


def _check(options: Any) -> None:
    order, layers = getattr(options, "order", 2), getattr(options, "layers", 1)
    if options.width < 1 or not 2 <= order <= MOST_WORDS or not 0 <= options.dropout < 1:
        raise ValueError(
            f"width must be at least 1, order from 2 to {MOST_WORDS} and dropout in [0, 1), not "
            f"{options}"
        )
    if not 1 <= layers <= MOST_LAYERS:
        raise ValueError(f"layers must be from 1 to {MOST_LAYERS}, not {layers}")
    if not 0 <= getattr(options, "init_scale", 1.0) < math.inf:
        raise ValueError(f"init_scale must be finite and not below 0, not {options.init_scale}")
    if not 1 <= getattr(options, "context", 1) <= MOST_WORDS:
        raise ValueError(f"context must be from 1 to {MOST_WORDS} words, not {options.context}")
