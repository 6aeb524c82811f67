"""Filtering: what is known of the state after each symbol of a stream, as it comes in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from bighmm.hmm import HMM
from bighmm.infer.predict import predict_states
from bighmm.infer.sequences import Carry, Sequences


class Step(NamedTuple):
    symbol: Any  # as it was given
    log_prob: float  # log p(symbol | all before)
    proba: np.ndarray  # (Z,) p(state | all so far); 0 once something impossible has come
    state: int  # the likeliest; -1 once something impossible has come
    changed: bool  # whether another state was the likeliest before this symbol


class OnlineFilter:
    """p(state | all symbols so far) of a stream, and what comes next.

    hmm: with the symbols for what is missing and unseen (see `gaps`).
    known: how many symbols there are without these.
    number: the number of a symbol as it is given; ValueError for one that is not known.
    """

    def __init__(self, hmm: HMM, known: int, number: Callable[[Any], int]) -> None:
        self.hmm, self.known, self._number = hmm, known, number
        self.reset()

    def reset(self) -> None:
        """Begin again, before the first symbol."""
        self.carry = Carry.at_start(self.hmm, 1)
        self.log_prob = 0.0  # of all symbols so far
        self.length = 0  # how many there were
        self.state: int | None = None  # the likeliest; None before the first symbol

    @torch.no_grad()
    def update(self, symbol: Any) -> Step:
        """Take in the next symbol, which may be missing (None, NaN or -1)."""
        token = torch.tensor([self._number(symbol)])
        gained, self.carry = self.hmm.advance(Sequences.single(token), self.carry)
        before, log_prob = self.state, float(gained)
        self.log_prob, self.length = self.log_prob + log_prob, self.length + 1
        proba = self.carry.log_alpha[0].exp().numpy()
        self.state = int(proba.argmax()) if proba.any() else -1
        return Step(symbol, log_prob, proba, self.state, before not in (None, self.state))

    def follow(self, stream: Iterable[Any]) -> Iterator[Step]:
        """A step for each symbol of a stream, as soon as it is there."""
        return map(self.update, stream)

    @torch.no_grad()
    def state_proba(self, ahead: int = 0) -> np.ndarray:
        """p(state | all so far) (Z,) now, or some steps `ahead`. Before the first symbol one step
        ahead is the start."""
        if ahead < 0:
            raise ValueError(f"ahead must not be below 0, not {ahead}")
        if ahead == 0:
            if self.length == 0:
                raise ValueError("there is no state before the first symbol; ask one step ahead")
            return self.carry.log_alpha[0].exp().numpy()
        log_states = predict_states(self.hmm, self.carry)
        for _ in range(ahead - 1):
            log_states = self.hmm.transitions.product().ahead(log_states)
        return log_states[0].exp().numpy()

    @torch.no_grad()
    def next_proba(self, ahead: int = 1) -> np.ndarray:
        """p (V,) of the next symbol, or of that some more steps `ahead`."""
        if ahead < 1:
            raise ValueError(f"ahead must be at least 1, not {ahead}")
        emission = self.hmm.emission[: self.known].exp().numpy()  # (V, Z)
        found = emission @ self.state_proba(ahead)
        return found / found.sum() if found.any() else found
