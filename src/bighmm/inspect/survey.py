"""What a corpus says of every state, in one pass: its share, and where it is most certain."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bighmm.base.interrupting import report
from bighmm.data.batches import padded_rows
from bighmm.data.corpus import sentence_bounds
from bighmm.hmm import HMM
from bighmm.infer.sequences import batches_by_length

SENTENCES = 32  # that are worked on together at most, so that progress is seen and work can stop
LEAST = 0.01  # contexts in which a state is less likely than this are not kept


class Context(NamedTuple):
    """A place of a stream of tokens at which a state is likely."""

    place: int
    prob: float  # p(state there | its sentence)


@dataclass(frozen=True)
class Survey:
    """Shares of all states, and the places at which each is most certain."""

    shares: Tensor  # (Z,) float64, on the CPU; they sum to 1
    bounds: np.ndarray  # (N + 1,) where sentences begin and end
    first: np.ndarray  # (Z + 1,) where the places of each state begin among all
    places: np.ndarray  # (P,) by state, the likeliest first
    probs: np.ndarray  # (P,)

    def contexts(self, state: int) -> list[Context]:
        """The places at which a state is most certain, the most certain first."""
        here = slice(int(self.first[state]), int(self.first[state + 1]))
        both = zip(self.places[here].tolist(), self.probs[here].tolist(), strict=True)
        return [Context(place, prob) for place, prob in both]

    def sentence(self, place: int) -> tuple[int, int]:
        """Where the sentence that has this place begins and ends."""
        number = int(np.searchsorted(self.bounds, place, side="right")) - 1
        return int(self.bounds[number]), int(self.bounds[number + 1])


@torch.no_grad()
def survey_corpus(
    hmm: HMM, tokens: np.ndarray, documents: np.ndarray | None = None, contexts: int = 20
) -> Survey:
    """Shares as `state_shares` has them, and `contexts` places for every state.

    Where a state is certain in many places, each word is there once before any is there twice, so
    that one frequent word does not hide the others. It tells how many of the tokens it has read
    (`base.interrupting`). Sentences of probability zero do not count.
    """
    tokens = np.asarray(tokens)
    bounds = sentence_bounds(tokens, -1 if hmm.end is None else hmm.end, documents)
    lengths = torch.from_numpy(np.diff(bounds))
    alone = dataclasses.replace(hmm, reset=True)
    expected = torch.zeros(hmm.num_states, dtype=torch.float64)
    likely = _Likely(contexts)
    done = 0
    for group in batches_by_length(lengths, hmm.support.states_per_token):
        for rows in group.split(SENTENCES):
            ids = torch.from_numpy(padded_rows(tokens, bounds, rows.numpy()))
            found = alone.posterior(ids, lengths[rows])
            states, probs = found.states.cpu(), found.marginals.double().cpu()
            expected.index_add_(0, states.clamp(min=0).view(-1), probs.view(-1))
            row, time, place = torch.nonzero(probs >= LEAST, as_tuple=True)
            where = bounds[rows.numpy()][row.numpy()] + time.numpy()
            likely.add(
                states[row, time, place].numpy(),
                where,
                tokens[where].astype(np.int64),
                probs[row, time, place].numpy(),
            )
            done += int(lengths[rows].sum())
            report(done, len(tokens))
    shares = expected / expected.sum().clamp(min=torch.finfo(torch.float64).tiny)
    return Survey(shares, bounds, *likely.by_state(hmm.num_states))


class _Likely:
    """The likeliest places of each state among those that were added."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.parts: list[tuple[np.ndarray, ...]] = []
        self.size = self.limit = 0

    def add(self, *part: np.ndarray) -> None:
        """States, places, tokens and probabilities (P,) each."""
        self.parts.append(part)
        self.size += len(part[0])
        if self.size > max(2 * self.limit, 2**20):  # what is not needed is dropped now and then
            self._shrink()

    def by_state(self, num_states: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where the places of each state begin (Z + 1,), the places (P,) and probabilities (P,)."""
        self._shrink()
        states, places, _, probs = self.parts[0]
        return np.searchsorted(states, np.arange(num_states + 1)), places, probs

    def _shrink(self) -> None:
        whole = [np.concatenate(column) for column in zip(*self.parts, strict=True)]
        if not self.parts:
            whole = [np.zeros(0, np.int64)] * 3 + [np.zeros(0)]
        states, places, tokens, probs = whole
        # How often the same word stood before in the list of its state, by probability.
        order = np.lexsort((places, -probs, tokens, states))
        again = _count_within(states[order] * (tokens.max(initial=0) + 1) + tokens[order])
        repeated = np.empty_like(again)
        repeated[order] = again
        order = np.lexsort((places, -probs, repeated, states))
        order = order[_count_within(states[order]) < self.most]
        order = order[np.lexsort((places[order], -probs[order], states[order]))]
        self.parts = [tuple(column[order] for column in whole)]
        self.size = self.limit = len(order)


def _count_within(keys: np.ndarray) -> np.ndarray:
    """How many equal keys stand directly before each key, which are sorted: 0, 1, 2, 0, …"""
    places = np.arange(len(keys))
    begins = np.ones(len(keys), dtype=bool)
    begins[1:] = keys[1:] != keys[:-1]
    return places - np.maximum.accumulate(np.where(begins, places, 0))
