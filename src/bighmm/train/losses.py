"""Losses: nats per token of a window, given the state that the windows before left behind.

The carried state is a dictionary of tensors with the rows of the batch first, so that a captured
graph can keep it in place and a checkpoint can save it, whatever the model is. Everything random is
a function of `key`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from bighmm.data.batches import Batch
from bighmm.infer.filter import advance
from bighmm.infer.joint import log_joint
from bighmm.infer.sequences import Sequences, ends_text, unchecked
from bighmm.lm.baselines.neural import Network
from bighmm.model.feature_dropout import FeatureRates, dropping
from bighmm.model.model import Model
from bighmm.model.params import Parameterisation
from bighmm.ops.feature_dropout import chosen
from bighmm.ops.matmul import fast_products
from bighmm.ops.present_blocks import present_blocks
from bighmm.train import carrying
from bighmm.train.carrying import EVERY, State

HIDDEN = 4_000  # the place of the mask of hidden words
NO_RATES = FeatureRates()


class Window(NamedTuple):
    """What a step reads, on the device: rows of a batch, which may be all of them."""

    ids: Tensor  # (B, T)
    lengths: Tensor  # (B,)
    states: Tensor | None = None  # (B, T) where they are known, -1 where they are not
    whole: tuple[Tensor, Tensor] | None = None  # ids and lengths of all rows, if these are some
    first: int = 0  # the place of the first row among all

    @property
    def every(self) -> tuple[Tensor, Tensor]:
        """The ids and the lengths of all rows."""
        return (self.ids, self.lengths) if self.whole is None else self.whole

    def rows(self, part: slice) -> Window:
        """Some of the rows. Where there are none, one without words, as a process needs some."""
        states, lengths = self.states, self.lengths[part]
        if len(lengths) == 0:
            part, lengths = slice(0, 1), torch.zeros_like(self.lengths[:1])
        some = None if states is None else states[part]
        return Window(self.ids[part], lengths, some, (self.ids, self.lengths), part.start)


class Loss(Protocol):
    def initial_state(self, rows: int, every: int | None = None) -> State:
        """What is carried into the first window of a text; it has some `rows` of `every` row."""
        ...

    def __call__(self, window: Window, state: State, key: Tensor) -> tuple[Tensor, State]:
        """Nats per token of a window, differentiable, and what is carried on."""
        ...

    def precision(self) -> AbstractContextManager[None]:
        """Context manager that sets the precision of matrix products, forward and backward."""
        ...

    def prepare(self, batches: Sequence[Batch]) -> Hashable:
        """Get ready for these batches, without asking the device.

        They follow those of the last call, or where there are none of them, nothing that is known.
        Where two results are equal, steps have the same shapes and can share a captured graph.
        """
        ...


class Likelihood:
    """−log p(window | what came before) of an HMM, under state dropout and `features` dropout.

    hidden_words: the share of words of which a step is only told the block. The loss is the exact
    likelihood of what it is told, in nats per word that is not hidden. End marks are never hidden.
    reset: whether the state after an end mark is drawn anew, or carried on.

    Where the parameters can be computed for some blocks alone, only those are that have a word in
    the window or carry a state into it. `most_blocks` is then how many they are at most; if it is
    None they are counted, which asks the device for a number.
    """

    def __init__(
        self,
        params: Parameterisation,
        state_dropout: float = 0.0,
        features: FeatureRates = NO_RATES,
        hidden_words: float = 0.0,
        reset: bool = True,
    ) -> None:
        _check(params, features)
        if hidden_words and params.support.is_dense:
            raise ValueError(
                "hidden_words hides a word within its block, and a dense model has no blocks; set "
                "it to 0"
            )
        self.params, self.dropout, self.features = params, state_dropout, features
        self.hidden_words, self.reset = hidden_words, reset
        self.most_blocks: int | None = None
        self._block_of: np.ndarray | None = None  # on the host
        self._carried: np.ndarray | None = None  # the blocks at the ends of the last batch's rows
        self._rows = 0  # the most that a batch has
        support, kept = params.support, self._draw_kept(torch.tensor(0))
        restricted = support if kept is None else support.restrict(kept)
        self.states_per_token = restricted.states_per_token

    def initial_state(self, rows: int, every: int | None = None) -> State:
        self._rows = max(self._rows, every or rows)
        state = carrying.initial_state(rows, self.states_per_token, _device(self.params))
        if every is not None:
            state[EVERY] = torch.zeros(every, dtype=torch.long, device=_device(self.params))
        return state

    def __call__(self, window: Window, state: State, key: Tensor) -> tuple[Tensor, State]:
        model, kept = self._model(window, state, key)
        carry = carrying.to_carry(state, model, kept, self.params.support.num_states)
        sequences = unchecked(model, window.ids, window.lengths)
        words = window.every[1].sum()
        if self.hidden_words:
            hidden = self._hidden(*window.every, key.to(window.ids.device))
            words = (words - hidden.sum()).clamp(min=1)
            own = hidden.narrow(0, window.first, len(window.ids))
            sequences = replace(sequences, hidden=own)
        log_prob, carry = advance(model, sequences, carry)
        after = carrying.from_carry(carry, model, kept)
        if EVERY in state:
            after[EVERY] = carrying.last_tokens(*window.every, state[EVERY])
        return -log_prob.sum() / words, after

    def precision(self) -> AbstractContextManager[None]:
        return precision_of(self.params)

    def prepare(self, batches: Sequence[Batch]) -> Hashable:
        blocks = self.params.support.partition
        if not self.params.for_some_blocks or blocks is None:
            return None
        if self._block_of is None:
            self._block_of = blocks.block_of.cpu().numpy()
        if not batches:
            self._carried = None
            return None
        most = 0
        for batch in batches:
            here = self._block_of[batch.ids]
            rows = max(self._rows, len(here))
            seen, others = here, rows + 1  # blocks that may be carried, and the padding's
            if self._carried is not None:
                seen, others = np.append(here, self._carried), 1
            most = max(most, len(np.unique(seen)) + others)
            self._carried = None
            if len(here) == rows and batch.lengths.min() > 0:  # otherwise a row keeps what it had
                self._carried = here[np.arange(len(here)), batch.lengths - 1]
        step = max(4, blocks.num_blocks // 32)  # few different numbers, so few graphs
        self.most_blocks = min(blocks.num_blocks, -(-most // step) * step)
        return self.most_blocks

    def _model(self, window: Window, state: State, key: Tensor) -> tuple[Model, Tensor | None]:
        """The model of a step, and the states that it has."""
        support = self.params.support
        blocks = support.partition
        if not self.params.for_some_blocks or blocks is None:
            kept = self._draw_kept(key)
            with dropping(self.params, self.features, key):
                return _with_reset(self.params(kept), self.reset), kept
        carried = state[EVERY] if EVERY in state else state["tokens"]
        tokens = torch.cat([window.every[0].reshape(-1), carried])
        present = present_blocks(blocks.block_of, tokens, blocks.num_blocks, self.most_blocks)
        some = support.draw_kept_of(self.dropout, key.to(tokens.device), present)
        with dropping(self.params, self.features, key):
            return _with_reset(self.params(some, present), self.reset), some

    def _hidden(self, ids: Tensor, lengths: Tensor, key: Tensor) -> Tensor:
        """Which words of a window are hidden (B, T)."""
        inside = torch.arange(ids.shape[1], device=ids.device) < lengths.unsqueeze(1)
        found = chosen(self.hidden_words, key, HIDDEN, (len(ids), ids.shape[1])) & inside
        return found if self.params.end is None else found & (ids != self.params.end)

    def _draw_kept(self, key: Tensor) -> Tensor | None:
        """The states that survive dropout in a step; the same on every device."""
        if self.dropout == 0:
            return None
        return self.params.support.draw_kept(self.dropout, key.to(_device(self.params)))


class LabelledLikelihood:
    """−log p(window, states | what came before): latent variable distillation.

    All states take part, as any of them may be a label. Carried is the last word's state, and
    whether the next one is drawn from the start distribution.
    """

    def __init__(
        self, params: Parameterisation, features: FeatureRates = NO_RATES, reset: bool = True
    ) -> None:
        _check(params, features)
        self.params, self.features, self.reset = params, features, reset

    def initial_state(self, rows: int, every: int | None = None) -> State:
        return labelled_state(rows, _device(self.params))

    def __call__(self, window: Window, state: State, key: Tensor) -> tuple[Tensor, State]:
        with dropping(self.params, self.features, key):
            model = _with_reset(self.params(), self.reset)
        sequences, states, after = labelled_window(model, window, state)
        terms = log_joint(model, sequences, states, state["state"])
        return -terms.sum() / window.every[1].sum(), after

    def prepare(self, batches: Sequence[Batch]) -> None:
        """All steps have the same shapes."""

    def precision(self) -> AbstractContextManager[None]:
        return precision_of(self.params)


class CrossEntropy:
    """Of a neural baseline; carried are the network's state, and the last words as "last".

    The gradient is also that of the network's penalty; the value is the nats per token alone.
    """

    def __init__(self, network: Network, end: int) -> None:
        self.network, self.end = network, end

    def initial_state(self, rows: int, every: int | None = None) -> State:
        last = torch.full((rows,), self.end, device=_device(self.network))
        return {**self.network.begin(rows, self.end), "last": last}

    def __call__(self, window: Window, state: State, key: Tensor) -> tuple[Tensor, State]:
        ids, lengths = window.ids, window.lengths
        inner = {name: tensor for name, tensor in state.items() if name != "last"}
        previous = torch.cat([state["last"].unsqueeze(1), ids[:, :-1]], dim=1)
        key, tokens = key.to(ids.device), window.every[1].sum()
        self.network.split = None if window.whole is None else (window.first, len(window.whole[1]))
        hidden, inner = self.network.hidden(previous, inner, key)
        dropped = self.network.drop(hidden, key, 0)
        logits = self.network.logits(dropped)
        each = functional.cross_entropy(logits.flatten(0, 1), ids.flatten(), reduction="none")
        inside = torch.arange(ids.shape[1], device=ids.device) < lengths.unsqueeze(1)
        loss = (each * inside.flatten()).sum() / tokens
        penalty = self.network.penalty(hidden, dropped, inside)
        if penalty is not None:
            penalty = penalty * (inside.sum() / tokens)  # of these rows, among all
            loss = loss + (penalty - penalty.detach())
        return loss, {**inner, "last": ids[:, -1]}

    def prepare(self, batches: Sequence[Batch]) -> None:
        """All steps have the same shapes."""

    def precision(self) -> AbstractContextManager[None]:
        """The softmax is normalised whatever the logits' precision."""
        device = _device(self.network)
        return fast_products(device) if device.type == "cpu" else tensor_float_32()


def labelled_state(rows: int, device: torch.device) -> State:
    """What is carried into the first window of labelled text."""
    return {
        "state": torch.full((rows,), -1, device=device),
        "fresh": torch.ones(rows, dtype=torch.bool, device=device),
    }


def labelled_window(model: Model, window: Window, state: State) -> tuple[Sequences, Tensor, State]:
    """A window as inference takes it, its states, and what is carried on."""
    assert window.states is not None, "the batches have labels"
    sequences = unchecked(model, window.ids, window.lengths)
    sequences.fresh[:, 0] = state["fresh"]
    last = (window.lengths - 1).clamp(min=0).unsqueeze(1)
    empty = window.lengths == 0
    final = window.states.gather(1, last).squeeze(1)
    fresh = ends_text(model, window.ids.gather(1, last).squeeze(1))
    after = {
        "state": torch.where(empty, state["state"], final),
        "fresh": torch.where(empty, state["fresh"], fresh),
    }
    return sequences, window.states, after


def precision_of(params: Parameterisation) -> AbstractContextManager[None]:
    """Products in TensorFloat-32, on some CPUs in bfloat16, where the vectors that make logits are
    rounded to bfloat16.

    Both hold bfloat16 numbers as they are, so logits and normalisers are the same as with float32,
    and only the networks before the rounding, and gradients, lose digits.
    """
    device = _device(params)
    if device.type == "cpu":
        return fast_products(device, may_round=params.rounds)
    return tensor_float_32() if params.rounds else nullcontext()


@contextmanager
def tensor_float_32() -> Iterator[None]:
    """Context in which a GPU keeps ten bits of float32 numbers in products."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _check(params: Parameterisation, features: FeatureRates) -> None:
    if features and not params.drops_features:
        raise ValueError(
            "dropout of embeddings, vectors and words needs a model that is computed from vectors; "
            "set embedding_dropout, vector_dropout and word_dropout to 0"
        )


def _with_reset(model: Model, reset: bool) -> Model:
    return model if reset == model.reset else replace(model, reset=reset)


def _device(module: torch.nn.Module) -> torch.device:
    return next(module.parameters()).device
