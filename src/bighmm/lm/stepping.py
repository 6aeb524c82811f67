"""Texts that are written side by side, a token of each at a time.

A `Stepper` is a language model that predicts the next token of many rows and is told what it is.
What it remembers of them is a dictionary of tensors of fixed shapes with the rows first, so that a
captured graph can keep it in place.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from bighmm.hmm import HMM
from bighmm.infer.sequences import Carry, Sequences
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

    def predict(self, state: State) -> tuple[Tensor, State]:
        return self.hmm.next_token_after(Carry(**state)), state

    def after(self, state: State, tokens: Tensor) -> State:
        _, carry = self.hmm.advance(Sequences.single(tokens), Carry(**state))
        return dict(vars(carry))
