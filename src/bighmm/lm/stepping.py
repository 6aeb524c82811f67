"""Texts that are written side by side, a token of each at a time.

A `Stepper` is a language model that predicts the next token of many rows and is told what it is.
What it remembers of them is a dictionary of tensors of fixed shapes with the rows first, so that a
captured graph can keep it in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from bighmm.hmm import HMM
from bighmm.infer.sequences import Carry, Sequences, padded
from bighmm.lm.protocol import LM

State = dict[str, Tensor]


class Stepper(Protocol):
    @property
    def device(self) -> torch.device: ...

    @property
    def capturable(self) -> bool:
        """Whether a step asks the host for no number, so that a CUDA graph can hold it."""
        ...

    def begin(self, rows: int) -> State:
        """Before the first token of each row."""
        ...

    def predict(self, state: State) -> tuple[Tensor, State]:
        """log p (B, V) of the next tokens, and a state for `after`."""
        ...

    def after(self, state: State, tokens: Tensor) -> State:
        """Once the next tokens are `tokens` (B,); `state` is that of `predict`."""
        ...


def stepper_of(lm: LM) -> Stepper:
    """The stepper of a language model; ValueError if its family has none."""
    make = getattr(lm, "stepper", None)
    if make is None:
        raise ValueError(
            f"a model of the class {type(lm).__name__} has no stepper, so it cannot write"
        )
    return make()


def state_after(stepper: Stepper, rows: Sequence[Sequence[int]]) -> State:
    """What a stepper remembers of texts of token ids; one may be empty."""
    read = getattr(stepper, "state_after", None)  # those that need not take every step
    if read is not None:
        return read(rows)
    ids, lengths = (tensor.to(stepper.device) for tensor in padded(rows))
    state = stepper.begin(len(rows))
    for place in range(ids.shape[1]):
        state = go_on(stepper, stepper.predict(state)[1], state, ids[:, place], place < lengths)
    return state


def go_on(stepper: Stepper, predicted: State, before: State, tokens: Tensor, on: Tensor) -> State:
    """The state once the next tokens (B,) are known, where `on` (B,); elsewhere it is `before`.

    predicted: what `predict` returned for `before`.
    """
    after = stepper.after(predicted, tokens)
    kept = {name: on.view(-1, *[1] * (tensor.dim() - 1)) for name, tensor in after.items()}
    return {name: torch.where(kept[name], after[name], before[name]) for name in after}


class HMMStepper:
    """The filtered states of an HMM."""

    capturable = False

    def __init__(self, hmm: HMM) -> None:
        self.hmm = hmm

    @property
    def device(self) -> torch.device:
        return self.hmm.start.device

    def begin(self, rows: int) -> State:
        return dict(vars(Carry.at_start(self.hmm, rows)))

    def state_after(self, rows: Sequence[Sequence[int]]) -> State:
        return dict(vars(self.hmm.carry_after(*padded(rows))))

    def predict(self, state: State) -> tuple[Tensor, State]:
        return self.hmm.next_token_after(Carry(**state)), state

    def after(self, state: State, tokens: Tensor) -> State:
        _, carry = self.hmm.advance(Sequences.single(tokens), Carry(**state))
        return dict(vars(carry))
