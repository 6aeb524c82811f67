"""Training steps on a GPU as one captured graph: the host only launches it.

A burst of batches, step sizes and keys of dropout masks is copied to the device at once; the
graph picks its own by a counter that it raises itself, and leaves the loss and the norm behind,
which are read once per burst. The first steps are done without the graph, as kernels are compiled
and memory is set aside in them. Where bursts can differ in the shapes of their steps
(`Update.prepare`), there is a graph for each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bighmm.base import processes, randomness
from bighmm.data.batches import Batch, Batches, Labelled
from bighmm.model.params import Parameterisation
from bighmm.ops.compiling import can_compile_together, compiled_together
from bighmm.train.carrying import begun_anew
from bighmm.train.losses import State, Window
from bighmm.train.runner import StepResult, averaged, restore_tensors, saved_tensors
from bighmm.train.update import Update

STEPS_BEFORE_CAPTURE = 3


class CapturedRunner:
    """Steps as a CUDA graph; batches must have one shape.

    changed: called after the parameters have changed.
    """

    at_once = 64

    def __init__(
        self,
        update: Update,
        batches: Batches,
        seed: int,
        *,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        assert batches.shape is not None, "a graph needs batches of one shape"
        self.update, self.batches, self.seed, self.changed = update, batches, seed, changed
        self.device = next(update.params.parameters()).device
        self.stream = torch.cuda.Stream(self.device)
        self.graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self.eager_steps: Counter[Hashable] = Counter()
        self.pool: Any = None  # of memory, which all graphs share
        self.ahead: tuple[int, list[Batch]] = (-1, [])
        self.rows, self.window = batches.shape
        self.labelled = isinstance(batches, Labelled)
        burst, device = self.at_once, self.device
        # Numbers for each step: ids, lengths, whether rows continue, its key, then labels.
        number = self.rows * self.window
        self.before_labels = number + 2 * self.rows + 1
        width = self.before_labels + (number if self.labelled else 0)
        self.given = torch.zeros(burst, width, dtype=torch.long, device=device)
        self.sizes = torch.zeros(burst, device=device)
        self.outcome = torch.zeros(burst, 2, device=device)  # loss, norm
        self.place = torch.zeros(1, dtype=torch.long, device=device)
        # Every process has the whole batch, and does some of its rows.
        self.processes = processes.current()
        self.own = self.processes.share(self.rows)
        every = None if self.processes.alone else self.rows
        self.initial = update.initial_state(self.own.stop - self.own.start, every)
        self.state = {name: tensor.clone() for name, tensor in self.initial.items()}

    def run(self, step: int, count: int) -> list[StepResult]:
        assert count <= self.at_once
        batches = self._batches(step, count)
        sizes = [self.update.size(step + i) for i in range(count)]
        shape = self.update.prepare(batches)
        with torch.cuda.stream(self.stream), self.update.precision():
            keys = randomness.key(self.seed, torch.arange(step, step + count))
            self._fill(batches, sizes, keys)
            if not (self.eager_steps or self.graphs):
                self._compile()
            for _ in range(count):
                self._one(shape)
            self.ahead = (step + count, self._batches(step + count, self.at_once))
            outcome = self.outcome[:count].tolist()
        self.changed()
        return [
            StepResult(loss, norm, size, int(batch.lengths.sum()))
            for (loss, norm), size, batch in zip(outcome, sizes, batches, strict=True)
        ]

    @contextmanager
    def evaluated(self) -> Iterator[None]:
        with averaged(self.update.average, self.changed):
            yield
        torch.cuda.synchronize(self.device)  # before the next steps, on another stream

    def tensors(self) -> dict[str, Tensor]:
        update = self.update
        return saved_tensors(update.params, update.optimizer, self.state, update.average)

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        update = self.update
        state = restore_tensors(update.params, update.optimizer, tensors, update.average)
        if state is not None:
            self._keep(state)
        torch.cuda.synchronize(self.device)
        self.update.prepare([])
        self.changed()

    def release(self) -> None:
        torch.cuda.synchronize(self.device)
        self.update.prepare([])
        self.graphs.clear()  # they would be captured again
        self.eager_steps.clear()
        self.pool = None

    def _one(self, shape: Hashable) -> None:
        if shape not in self.graphs and self.eager_steps[shape] < STEPS_BEFORE_CAPTURE:
            self.eager_steps[shape] += 1
            self._body()
            return
        if shape not in self.graphs:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
                self._body()
            self.graphs[shape] = graph
            self.pool = self.pool or graph.pool()
        self.graphs[shape].replay()

    def _compile(self) -> None:
        """Compile the kernels of a step at the same time; the step itself does nothing."""
        if isinstance(self.update.params, Parameterisation) and can_compile_together():
            with compiled_together():
                window, state, key, _ = self._given()
                self.update.begin()
                self.update.accumulate(window, state, key)
            self.update.begin()

    def _given(self) -> tuple[Window, State, Tensor, Tensor]:
        """The window of a step, what is carried into it, its key, and the step size."""
        given = self.given.index_select(0, self.place).squeeze(0)
        number = self.rows * self.window
        ids, lengths, continues, key, states = given.split(
            [number, self.rows, self.rows, 1, len(given) - self.before_labels]
        )
        window = Window(
            ids.view(self.rows, self.window),
            lengths,
            states.view(self.rows, self.window) if self.labelled else None,
        )
        if not self.processes.alone:
            window = window.rows(self.own)
        goes_on = continues > 0
        state = begun_anew(self.state, self.initial, goes_on, self.own)
        return window, state, key.squeeze(0), self.sizes.index_select(0, self.place).squeeze(0)

    def _body(self) -> None:
        window, state, key, size = self._given()
        self.update.begin()
        loss, state = self.update.accumulate(window, state, key)
        norm = self.update.norm()
        self.processes.sum_([loss])
        self.update.apply(size)
        self._keep(state)
        outcome = torch.stack([loss, norm]).unsqueeze(0)
        self.outcome.index_copy_(0, self.place, outcome)
        self.place += 1

    def _batches(self, step: int, count: int) -> list[Batch]:
        """Batches of some steps; those of the next burst were made while the device was busy."""
        if step == self.ahead[0]:
            return self.ahead[1][:count]
        return [self.batches.batch(step + i) for i in range(count)]

    def _fill(self, batches: list[Batch], sizes: list[float], keys: Tensor) -> None:
        count, number = len(batches), self.rows * self.window
        given = np.zeros((count, self.given.shape[1]), dtype=np.int64)
        given[:, self.before_labels - 1] = keys.numpy()
        for row, batch in zip(given, batches, strict=True):
            here = np.s_[: batch.ids.shape[0], : batch.ids.shape[1]]
            row[:number].reshape(self.rows, self.window)[here] = batch.ids
            row[number : number + len(batch.lengths)] = batch.lengths
            row[number + self.rows : number + 2 * self.rows] = batch.continues
            if self.labelled and batch.states is not None:
                row[self.before_labels :].reshape(self.rows, self.window)[here] = batch.states
        self.given[:count].copy_(torch.from_numpy(given))
        self.sizes[:count].copy_(torch.tensor(sizes))
        self.place.zero_()

    def _keep(self, state: State) -> None:
        names = list(state)
        torch._foreach_copy_([self.state[n] for n in names], [state[n].detach() for n in names])
