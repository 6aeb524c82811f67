"""What a training step minimises: nats per token of a window, given what the windows before left.

The carried state is a dictionary of tensors with the rows of the batch first, so that a captured
graph can keep it in place and a checkpoint can save it, whatever the model is. Everything random is
a function of `key`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from bighmm.hmm import HMM
from bighmm.infer.inputs import Sequences, ends_text, trusted
from bighmm.infer.joint import log_joint
from bighmm.lm.baselines.neural import NeuralLM
from bighmm.lm.hmmlm import HMMLM
from bighmm.train.carried import Carried
from bighmm.train.recipe import TrainingSettings

State = dict[str, Tensor]
Trainable = HMMLM | NeuralLM


class Window(NamedTuple):
    """What a step reads, on the device."""

    ids: Tensor  # (B, T)
    lengths: Tensor  # (B,)
    states: Tensor | None = None  # (B, T) where they are known, -1 where they are not


class Objective(Protocol):
    def begin(self, rows: int) -> State:
        """What is carried into the first window of a text."""
        ...

    def loss(self, window: Window, carried: State, key: Tensor) -> tuple[Tensor, State]:
        """Nats per token of a window, and what is carried on."""
        ...

    def precision(self) -> AbstractContextManager[None]:
        """In which the products of a step are done, forward and backward."""
        ...


def make_objective(lm: Trainable, settings: TrainingSettings) -> Objective:
    return NeuralObjective(lm) if isinstance(lm, NeuralLM) else HMMObjective(lm, settings)


class HMMObjective:
    def __init__(self, lm: HMMLM, settings: TrainingSettings) -> None:
        self.lm, self.dropout = lm, settings.state_dropout
        support = lm.params.support.to(lm.device)
        kept = self._draw_mask(torch.tensor(0))
        self.alive = support.alive if kept is None else support.restrict(kept).alive

    def begin(self, rows: int) -> State:
        device = self.lm.device
        return Carried(
            torch.zeros(rows, dtype=torch.long, device=device),
            torch.full((rows, self.alive), -1, device=device),
            torch.full((rows, self.alive), -torch.inf, device=device),
            torch.ones(rows, dtype=torch.bool, device=device),
        ).fields()

    def loss(self, window: Window, carried: State, key: Tensor) -> tuple[Tensor, State]:
        kept = self._draw_mask(key)
        hmm = self.lm.params(kept)
        carry = Carried(**carried).onto(hmm, kept, self.lm.params.support.num_states)
        sequences = trusted(hmm, window.ids, window.lengths)
        log_prob, carry = hmm.advance(sequences, carry)
        return -log_prob.sum() / window.lengths.sum(), Carried.after(carry, hmm, kept).fields()

    def precision(self) -> AbstractContextManager[None]:
        return precision_of(self.lm)

    def _draw_mask(self, key: Tensor) -> Tensor | None:
        """The states that survive dropout in a step; the same on every device."""
        if self.dropout == 0:
            return None
        return self.lm.params.support.draw_kept(self.dropout, key.to(self.lm.device))


class LabelledObjective:
    """Nats per token of words and states together: latent variable distillation.

    All states take part, as any of them may be a label. Carried is the last word's state, and
    whether the next one is drawn from the start distribution.
    """

    def __init__(self, lm: HMMLM) -> None:
        self.lm = lm

    def begin(self, rows: int) -> State:
        return labelled_beginning(rows, self.lm.device)

    def loss(self, window: Window, carried: State, key: Tensor) -> tuple[Tensor, State]:
        hmm = self.lm.params()
        sequences, states, after = labelled_window(hmm, window, carried)
        terms = log_joint(hmm, sequences, states, carried["state"])
        return -terms.sum() / window.lengths.sum(), after

    def precision(self) -> AbstractContextManager[None]:
        return precision_of(self.lm)


def labelled_beginning(rows: int, device: torch.device) -> State:
    """What is carried into the first window of labelled text."""
    return {
        "state": torch.full((rows,), -1, device=device),
        "fresh": torch.ones(rows, dtype=torch.bool, device=device),
    }


def labelled_window(hmm: HMM, window: Window, carried: State) -> tuple[Sequences, Tensor, State]:
    """A window as inference takes it, its states, and what is carried on."""
    assert window.states is not None, "the batches have labels"
    sequences = trusted(hmm, window.ids, window.lengths)
    sequences.fresh[:, 0] = carried["fresh"]
    last = (window.lengths - 1).clamp(min=0).unsqueeze(1)
    empty = window.lengths == 0
    state = window.states.gather(1, last).squeeze(1)
    fresh = ends_text(hmm, window.ids.gather(1, last).squeeze(1))
    return (
        sequences,
        window.states,
        {
            "state": torch.where(empty, carried["state"], state),
            "fresh": torch.where(empty, carried["fresh"], fresh),
        },
    )


class NeuralObjective:
    """Cross-entropy; carried are the network's state, and the last words as "last"."""

    def __init__(self, lm: NeuralLM) -> None:
        self.lm = lm

    def begin(self, rows: int) -> State:
        last = torch.full((rows,), self.lm.end, device=self.lm.device)
        return {**self.lm.params.begin(rows, self.lm.end), "last": last}

    def loss(self, window: Window, carried: State, key: Tensor) -> tuple[Tensor, State]:
        ids, lengths = window.ids, window.lengths
        state = {name: tensor for name, tensor in carried.items() if name != "last"}
        previous = torch.cat([carried["last"].unsqueeze(1), ids[:, :-1]], dim=1)
        logits, state = self.lm.params(previous, state, key.to(ids.device))
        each = functional.cross_entropy(logits.flatten(0, 1), ids.flatten(), reduction="none")
        inside = torch.arange(ids.shape[1], device=ids.device) < lengths.unsqueeze(1)
        loss = (each * inside.flatten()).sum() / inside.sum()
        return loss, {**state, "last": ids[:, -1]}

    def precision(self) -> AbstractContextManager[None]:
        """The softmax is normalised whatever the logits' precision."""
        return tensor_float_32()


def precision_of(lm: HMMLM) -> AbstractContextManager[None]:
    """Products in TensorFloat-32 where the vectors that make logits are rounded to bfloat16.

    TensorFloat-32 holds bfloat16 numbers as they are, so logits and normalisers are the same as
    with float32, and only the networks before the rounding, and gradients, lose digits.
    """
    return tensor_float_32() if lm.params.operands == "bfloat16" else nullcontext()


@contextmanager
def tensor_float_32() -> Iterator[None]:
    """On a GPU, products of float32 numbers that keep ten bits of each."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
