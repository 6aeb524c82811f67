"""Rows of text that language models write side by side, a token of each row at every step.

Each row is one stream: sentence after sentence, over end marks as the model reads them. A row ends
with the sentence in which it has its last token: if it were cut there, long sentences would be cut
more often than short ones.

Random numbers are a function of a key, so a graph can hold a whole step: on a GPU it is captured
where the models allow it, and the host is asked for a number once in many steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from bighmm.base import randomness
from bighmm.data.corpus import sentence_bounds
from bighmm.distill.shards import Shard
from bighmm.hmm import HMM
from bighmm.infer.sample import AncestralSampler, nucleus
from bighmm.infer.sequences import Carry
from bighmm.lm.stepping import State, Stepper
from bighmm.ops.drawing import draw_at

BURST, BURST_AFTER = 128, 16  # steps between two looks at what is there; of the last sentences
MOST_AFTER = 1024  # tokens that may be needed to finish a row's last sentence; then it is cut
STEPS_BEFORE_CAPTURE = 3  # in which kernels are compiled and memory is set aside


class Source(Protocol):
    """Where the next token of every row comes from."""

    device: torch.device
    capturable: bool  # whether a CUDA graph can hold a step

    def begin(self, key: Tensor) -> None:
        """Forget the rows; everything that is drawn from now on is a function of the key ()."""
        ...

    def draw(self) -> tuple[Tensor, Tensor | None]:
        """The next token of each row (B,), and log p (B,) of it where that is known."""
        ...


class FromProbabilities:
    """Tokens drawn from the mean of the probabilities of some models, given all before them."""

    def __init__(
        self, steppers: Sequence[Stepper], rows: int, temperature: float, top_p: float
    ) -> None:
        self.steppers, self.rows = steppers, rows
        self.temperature, self.top_p = temperature, top_p
        self.device = next((s.device for s in steppers if s.device.type != "cpu"), CPU)
        self.capturable = all(stepper.capturable for stepper in steppers)
        self.initial = [stepper.begin(rows) for stepper in steppers]
        self.states = [_copied(state) for state in self.initial]
        self.key, self.place = (torch.zeros((), dtype=torch.long).to(self.device) for _ in "kp")

    def begin(self, key: Tensor) -> None:
        self.key.copy_(key)
        self.place.zero_()
        for state, initial in zip(self.states, self.initial, strict=True):
            _keep(state, initial)

    def draw(self) -> tuple[Tensor, Tensor]:
        predicted = [s.predict(state) for s, state in zip(self.steppers, self.states, strict=True)]
        log_probs = mean_of([log_probs.to(self.device) for log_probs, _ in predicted])
        if self.temperature != 1:
            log_probs = (log_probs / self.temperature).log_softmax(1)
        log_probs = nucleus(log_probs, self.top_p)
        chosen = randomness.uniform(randomness.scrambled(self.key + self.place), self.rows)
        tokens = draw_at(log_probs, chosen)
        self.place += 1
        for stepper, state, (_, inner) in zip(self.steppers, self.states, predicted, strict=True):
            _keep(state, stepper.after(inner, tokens.to(stepper.device)))
        return tokens, log_probs.gather(1, tokens.unsqueeze(1)).squeeze(1)


class FromStates:
    """Tokens of an HMM that are drawn with its states: the same distribution, at much less cost."""

    capturable = False

    def __init__(self, hmm: HMM, rows: int) -> None:
        self.hmm, self.rows, self.device = hmm, rows, hmm.start.device

    def begin(self, key: Tensor) -> None:
        self.generator = torch.Generator(self.device).manual_seed(int(key) % 2**63)
        self.sampler = AncestralSampler(self.hmm, Carry.at_start(self.hmm, self.rows))

    def draw(self) -> tuple[Tensor, None]:
        return self.sampler.step(self.generator), None


class Streams:
    """Rows of a source, of at least `steps` tokens each.

    end: the end mark; None if there is none, and rows have exactly `steps` tokens.
    sentences: whether texts are sentences; otherwise each row is one text.
    precision: context manager that sets the precision of matrix products.
    """

    def __init__(
        self,
        source: Source,
        rows: int,
        steps: int,
        end: int | None,
        *,
        sentences: bool,
        precision: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.source, self.steps, self.end, self.sentences = source, steps, end, sentences
        self.precision, device = precision, source.device
        most = steps if end is None else steps + MOST_AFTER
        self.tokens = torch.zeros(most, rows, dtype=torch.int32, device=device)
        self.log_probs = torch.full((most, rows), math.nan, device=device)
        self.place = torch.zeros(1, dtype=torch.long, device=device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @torch.no_grad()
    def shard(self, key: Tensor, progress: Callable[[int], None] | None = None) -> Shard:
        """Texts that are a function of the key (): "tokens", "bounds" and, if known, "log_probs".

        progress: called with the number of tokens that are there.
        """
        if self.stream is not None:  # models were moved to the device on another one
            self.stream.wait_stream(torch.cuda.current_stream(self.source.device))
        with torch.cuda.stream(self.stream), self.precision():
            if self.graph is None and self.source.capturable:
                self._capture()
            self._begin(key)
            done, unfinished = 0, True
            while unfinished:
                more = self.steps - done if done < self.steps else len(self.tokens) - done
                count = min(BURST if done < self.steps else BURST_AFTER, more)
                for _ in range(count):
                    self._step() if self.graph is None else self.graph.replay()
                done += count
                unfinished = done < self.steps or (
                    done < len(self.tokens) and not self._finished(done)
                )
                if progress is not None:
                    progress(min(done, self.steps) * self.tokens.shape[1])
            return self._texts(done)

    def _begin(self, key: Tensor) -> None:
        self.source.begin(key)
        self.place.zero_()

    def _step(self) -> None:
        tokens, log_probs = self.source.draw()
        self.tokens.index_copy_(0, self.place, tokens.int().unsqueeze(0))
        if log_probs is not None:
            self.log_probs.index_copy_(0, self.place, log_probs.float().unsqueeze(0))
        self.place += 1

    def _capture(self) -> None:
        """Capture a step; what the steps before it wrote is forgotten."""
        for _ in range(STEPS_BEFORE_CAPTURE):
            self._begin(torch.tensor(0))  # there may be room for fewer steps
            self._step()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream):
            self._step()
        self.graph = graph

    def _finished(self, done: int) -> bool:
        """Whether each row has an end mark where it may end; asks the device."""
        assert self.end is not None, "without an end mark all rows end together"
        return bool(self.tokens[self.steps - 1 : done].eq(self.end).any(0).all())

    def _texts(self, done: int) -> Shard:
        rows = self.tokens[:done].cpu().numpy().T  # (B, T)
        lengths = np.full(len(rows), done)
        if self.end is not None:
            ends = rows[:, self.steps - 1 :] == self.end
            lengths = np.where(ends.any(1), self.steps + ends.argmax(1), done)
        inside = np.arange(done) < lengths[:, np.newaxis]
        tokens, bounds = rows[inside], np.concatenate([[0], np.cumsum(lengths)])
        if self.sentences and self.end is not None:
            bounds = sentence_bounds(tokens, self.end, bounds)
        found = {"tokens": torch.from_numpy(tokens), "bounds": torch.from_numpy(bounds)}
        log_probs = self.log_probs[:done].cpu().numpy().T[inside]
        if not np.isnan(log_probs).any():
            found["log_probs"] = torch.from_numpy(log_probs)
        return found


CPU = torch.device("cpu")


def mean_of(log_probs: Sequence[Tensor]) -> Tensor:
    """The logarithm of the mean of some probabilities, given as logarithms (B, V)."""
    if len(log_probs) == 1:
        return log_probs[0]
    return torch.stack([one.float() for one in log_probs]).logsumexp(0) - math.log(len(log_probs))


def _copied(state: State) -> State:
    return {name: tensor.clone() for name, tensor in state.items()}


def _keep(state: State, after: State) -> None:
    for name, tensor in state.items():
        tensor.copy_(after[name])
