"""The AWD-LSTM baseline: an LSTM with dropped recurrent weights (Merity, Keskar & Socher 2017).

A window of training draws every mask once: of the recurrent weights, of whole words, and of the
numbers of each row's vectors, which are then the same at all words of the row. Word embeddings are
also the output weights. Penalties of the last layer's size and change are added to the loss. The
averaged weights of the paper are a setting of training (`averaging`).

On a GPU the layers are computed in float16 in training, unless float32 is asked for. Gradients
inside them are `SCALE` times as large, so that small ones do not vanish.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from bighmm.base import randomness
from bighmm.lm.baselines import register
from bighmm.lm.baselines.neural import Network, NeuralLM, State
from bighmm.lm.options import AWDLSTMOptions
from bighmm.lm.protocol import MatmulDtype

SCALE = 8192.0
OUTPUT, INPUT, WORDS, LAYERS = 0, 1, 2, 3  # places of masks; each layer has two


class AWDLSTM(Network):
    """Layers of LSTMs, of which the last is as wide as the embeddings.

    The state is the output and the cell of each layer i, "output{i}" and "cell{i}" (B, H of it).
    """

    def __init__(self, options: AWDLSTMOptions, vocabulary_size: int) -> None:
        _check(options)
        super().__init__(vocabulary_size, options.embedding, options.dropout)
        nn.init.uniform_(self.words, -0.1, 0.1)
        self.bias = nn.Parameter(torch.zeros(vocabulary_size))
        widths = [options.embedding, *[options.width] * (options.layers - 1), options.embedding]
        self.layers = nn.ModuleList(nn.LSTM(*pair) for pair in itertools.pairwise(widths))
        self.widths = widths[1:]  # of the layers
        self.options = options
        self.training_dtype: torch.dtype | None = None  # of the layers; None: the parameters' own

    def begin(self, rows: int, end: int) -> State:
        names = [(f"output{i}", f"cell{i}") for i in range(len(self.layers))]
        zeros = [self.words.new_zeros(rows, width) for width in self.widths]
        return {n: zero for pair, zero in zip(names, zeros, strict=True) for n in pair}

    def hidden(self, previous: Tensor, state: State, key: Tensor | None) -> tuple[Tensor, State]:
        x, options = self._inputs(previous.t(), key), self.options  # (T, B, H), as cuDNN has it
        own = x.dtype
        dtype = own if key is None else self.training_dtype or own
        x, after = _cast(x, dtype, 1 / SCALE), State()
        for i in range(len(self.layers)):
            if i > 0:
                x = self._locked(x, key, LAYERS + 2 * i, options.dropout_between, time=0)
            names = (f"output{i}", f"cell{i}")
            before = tuple(state[name].to(dtype).unsqueeze(0) for name in names)
            weights, train = self.weights(i, key, dtype), torch.is_grad_enabled()
            x, *last = torch.lstm(x, before, weights, True, 1, 0.0, train, False, False)
            after |= {n: t.squeeze(0).to(own) for n, t in zip(names, last, strict=True)}
        return _cast(x, own, SCALE).transpose(0, 1), after

    def weights(self, i: int, key: Tensor | None, dtype: torch.dtype) -> list[Tensor]:
        """The weights of a layer as torch's LSTM takes them, the recurrent ones with dropout.

        On a GPU they are parts of one tensor, in the order of cuDNN, which else copies them.
        """
        own, share = dict(self.layers[i].named_parameters()), self.options.dropout_weights
        recurrent: Tensor = own["weight_hh_l0"]
        if key is not None and share > 0:
            place = LAYERS + 2 * i + 1
            recurrent = recurrent * mask(key, place, recurrent.shape, share, recurrent.dtype)
        found = [own["weight_ih_l0"], recurrent, own["bias_ih_l0"], own["bias_hh_l0"]]
        if dtype == self.words.dtype and not self.words.is_cuda:
            return found
        flat = _cast(torch.cat([w.flatten() for w in found]), dtype, 1 / SCALE)
        parts = flat.split([w.numel() for w in found])
        return [part.view(w.shape) for part, w in zip(parts, found, strict=True)]

    def logits(self, hidden: Tensor) -> Tensor:
        return functional.linear(hidden, self.words, self.bias)

    def drop(self, x: Tensor, key: Tensor | None, place: int) -> Tensor:
        return self._locked(x, key, place, self.dropout, time=1)

    def penalty(self, hidden: Tensor, dropped: Tensor, inside: Tensor) -> Tensor | None:
        width, both = hidden.shape[2], inside[:, 1:] & inside[:, :-1]
        size = (dropped.square().sum(2) * inside).sum() / (inside.sum() * width)
        change = (hidden.diff(dim=1).square().sum(2) * both).sum() / (both.sum() * width).clamp(1)
        return self.options.activation_penalty * size + self.options.change_penalty * change

    def _inputs(self, tokens: Tensor, key: Tensor | None) -> Tensor:
        """Embeddings (T, B, H) of tokens (T, B), with dropout of words and of their numbers."""
        # Not `embedding`, which may sort the tokens for its gradient.
        ids = tokens.flatten()
        found = self.words.index_select(0, ids)
        if key is not None and self.options.dropout_words > 0:
            share, size = self.options.dropout_words, len(self.words)
            found = found * mask(key, WORDS, (size, 1), share, found.dtype).index_select(0, ids)
        share = self.options.dropout_input
        return self._locked(found.view(*tokens.shape, -1), key, INPUT, share, time=0)

    def _locked(self, x: Tensor, key: Tensor | None, place: int, share: float, time: int) -> Tensor:
        """x with dropout whose mask is the same along the dimension `time`, 0 or 1."""
        if key is None or share == 0:
            return x
        rows = x.shape[1 - time]
        first, every = self.split or (0, rows)
        shape = (1, every, x.shape[2]) if time == 0 else (every, 1, x.shape[2])
        found = mask(key, place, shape, share, x.dtype)
        return x * found.narrow(1 - time, first, rows)


@register("awd-lstm", AWDLSTMOptions)
class AWDLSTMLM(NeuralLM):
    family, network = "awd-lstm", AWDLSTM

    def to(self, device: torch.device | str, matmul_dtype: MatmulDtype = "auto") -> AWDLSTMLM:
        """Move to a device and return the model; questions are answered in float32."""
        super().to(device)
        half = torch.device(device).type == "cuda" and matmul_dtype != "float32"
        assert isinstance(self.params, AWDLSTM)
        self.params.training_dtype = torch.float16 if half else None
        return self


def mask(key: Tensor, place: int, shape: Sequence[int], share: float, dtype: torch.dtype) -> Tensor:
    """0 for a share of the numbers and 1 / (1 − share) for the others, drawn by key and place.

    Each number that is drawn has 64 bits and serves four of them.
    """
    count = math.prod(shape)
    noise = randomness.noise(randomness.scrambled(key + place), -(-count // 4))
    least = min(round((share - 0.5) * 2**16), 2**15 - 1)
    kept = noise.view(torch.int16)[:count].view(*shape) >= least
    return kept.to(dtype) / (1 - share)


def _cast(x: Tensor, dtype: torch.dtype, factor: float) -> Tensor:
    """x in another type, its gradient multiplied by a factor; x itself where it has that type."""
    return x if x.dtype == dtype else _Cast.apply(x, dtype, factor)


class _Cast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype, factor: float) -> Tensor:
        ctx.dtype, ctx.factor = x.dtype, factor
        return x.to(dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return (grad.float() * ctx.factor).to(ctx.dtype), None, None


def _check(options: AWDLSTMOptions) -> None:
    names = ("dropout_words", "dropout_weights", "dropout_input", "dropout_between")
    for name in names:
        if not 0 <= getattr(options, name) < 1:
            raise ValueError(f"{name} must be in [0, 1), not {getattr(options, name)}")
    if options.embedding < 1:
        raise ValueError(f"embedding must be at least 1, not {options.embedding}")
    for name in ("activation_penalty", "change_penalty"):
        if not 0 <= getattr(options, name) < math.inf:
            raise ValueError(f"{name} must be finite and not below 0, not {getattr(options, name)}")
