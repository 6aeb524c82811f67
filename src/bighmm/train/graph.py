"""Training steps on a GPU as one captured graph: the host only launches it.

A burst of batches, step sizes and keys of dropout masks is copied to the device at once; the
graph picks its own by a counter that it raises itself, and leaves the loss and the gradient's norm
behind, which are read once per burst. The first steps are done without the graph, as kernels are
compiled and memory is set aside in them. What a step does is an `Update`.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from bighmm.base import randomness
from bighmm.data.batches import Batch, Batches, Labelled
from bighmm.train.objective import Objective, State, Trainable, Window
from bighmm.train.recipe import TrainingSettings
from bighmm.train.schedule import Schedule
from bighmm.train.steps import (
    Done,
    clip,
    restore_tensors,
    saved_tensors,
    set_rate,
)

STEPS_BEFORE_CAPTURE = 3


class Update(Protocol):
    """What is done on a window that is on the device, without a look of the host at any number."""

    @property
    def optimizer(self) -> torch.optim.Optimizer | None: ...

    def begin(self, rows: int) -> State:
        """What is carried into the first window of a text."""
        ...

    def size(self, step: int) -> float:
        """The learning rate of a step, or what is in its place."""
        ...

    def step(
        self, window: Window, carried: State, key: Tensor, size: Tensor
    ) -> tuple[Tensor, Tensor, State]:
        """Change the model: the loss before, the gradient's norm, and what is carried on."""
        ...

    def precision(self) -> AbstractContextManager[None]: ...


class Descent:
    """AdamW on the gradient of an objective."""

    def __init__(
        self,
        lm: Trainable,
        settings: TrainingSettings,
        schedule: Schedule,
        objective: Objective,
        optimizer: torch.optim.AdamW,
    ) -> None:
        self.lm, self.settings, self.schedule = lm, settings, schedule
        self.objective, self.optimizer = objective, optimizer
        self.begin, self.precision = objective.begin, objective.precision
        self.size = schedule.rate

    def step(
        self, window: Window, carried: State, key: Tensor, size: Tensor
    ) -> tuple[Tensor, Tensor, State]:
        loss, carried = self.objective.loss(window, carried, key)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = clip(self.lm, self.optimizer, self.settings)
        set_rate(self.optimizer, size)
        self.optimizer.step()
        return loss.detach(), norm, carried


class GraphSteps:
    at_once = 64

    def __init__(self, lm: Trainable, batches: Batches, seed: int, update: Update) -> None:
        assert batches.shape is not None, "a graph needs batches of one shape"
        self.lm, self.batches, self.seed, self.update = lm, batches, seed, update
        self.stream = torch.cuda.Stream(lm.device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.plain_steps = 0
        self.ahead: tuple[int, list[Batch]] = (-1, [])
        rows, window = batches.shape
        burst, device = self.at_once, lm.device
        self.ids = torch.zeros(burst, rows, window, dtype=torch.long, device=device)
        self.states = torch.zeros_like(self.ids) if isinstance(batches, Labelled) else None
        self.lengths = torch.zeros(burst, rows, dtype=torch.long, device=device)
        self.continues = torch.zeros(burst, dtype=torch.bool, device=device)
        self.sizes = torch.zeros(burst, device=device)
        self.outcome = torch.zeros(burst, 2, device=device)  # loss, norm
        self.place = torch.zeros(1, dtype=torch.long, device=device)
        self.keys = torch.zeros(burst, dtype=torch.long, device=device)
        self.nothing = update.begin(rows)
        self.carried = {name: tensor.clone() for name, tensor in self.nothing.items()}

    def run(self, step: int, count: int) -> list[Done]:
        assert count <= self.at_once
        batches = self._batches(step, count)
        sizes = [self.update.size(step + i) for i in range(count)]
        with torch.cuda.stream(self.stream), self.update.precision():
            keys = randomness.key(self.seed, torch.arange(step, step + count))
            self._fill(batches, sizes, keys)
            for _ in range(count):
                self._one()
            self.ahead = (step + count, self._batches(step + count, self.at_once))
            outcome = self.outcome[:count].tolist()
        self.lm.clear_cache()
        return [
            Done(loss, norm, size, int(batch.lengths.sum()))
            for (loss, norm), size, batch in zip(outcome, sizes, batches, strict=True)
        ]

    def tensors(self) -> dict[str, Tensor]:
        return saved_tensors(self.lm, self.update.optimizer, self.carried)

    def restore(self, tensors: dict[str, Tensor]) -> None:
        carried = restore_tensors(self.lm, self.update.optimizer, tensors)
        if carried is not None:
            self._carry(carried)
        torch.cuda.synchronize(self.lm.device)

    def release(self) -> None:
        torch.cuda.synchronize(self.lm.device)
        self.graph, self.plain_steps = None, 0  # it would be captured again

    def _one(self) -> None:
        if self.graph is None and self.plain_steps < STEPS_BEFORE_CAPTURE:
            self.plain_steps += 1
            self._body()
            return
        if self.graph is None:
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph, stream=self.stream):
                self._body()
        self.graph.replay()

    def _body(self) -> None:
        window = Window(
            self.ids[self.place].squeeze(0),
            self.lengths[self.place].squeeze(0),
            None if self.states is None else self.states[self.place].squeeze(0),
        )
        continues = self.continues[self.place]
        carried = {
            name: torch.where(continues.view(1, *[1] * (was.dim() - 1)), was, self.nothing[name])
            for name, was in self.carried.items()
        }
        key, size = self.keys[self.place].squeeze(0), self.sizes[self.place].squeeze(0)
        loss, norm, carried = self.update.step(window, carried, key, size)
        self._carry(carried)
        outcome = torch.stack([loss, norm]).unsqueeze(0)
        self.outcome.index_copy_(0, self.place, outcome)
        self.place += 1

    def _batches(self, step: int, count: int) -> list[Batch]:
        """Made while the device is still busy with those before, if they are the next."""
        if step == self.ahead[0]:
            return self.ahead[1][:count]
        return [self.batches.batch(step + i) for i in range(count)]

    def _fill(self, batches: list[Batch], sizes: list[float], keys: Tensor) -> None:
        count = len(batches)
        ids = np.zeros((count, *self.ids.shape[1:]), dtype=np.int64)
        states = None if self.states is None else np.zeros_like(ids)
        lengths = np.zeros((count, self.lengths.shape[1]), dtype=np.int64)
        for i, batch in enumerate(batches):
            rows, window = batch.ids.shape
            ids[i, :rows, :window] = batch.ids
            lengths[i, :rows] = batch.lengths
            if states is not None and batch.states is not None:
                states[i, :rows, :window] = batch.states
        for buffer, values in (
            (self.ids, torch.from_numpy(ids)),
            (self.states, None if states is None else torch.from_numpy(states)),
            (self.lengths, torch.from_numpy(lengths)),
            (self.continues, torch.tensor([batch.continues for batch in batches])),
            (self.sizes, torch.tensor(sizes)),
            (self.keys, keys),
        ):
            if buffer is not None and values is not None:
                buffer[:count].copy_(values)
        self.place.zero_()

    def _carry(self, state: State) -> None:
        for name, tensor in state.items():
            self.carried[name].copy_(tensor.detach())
