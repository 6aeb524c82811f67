"""Runners: they give an update its batches, step by step, and read what came of it.

`EagerRunner` does one step at a time on any device. `captured.CapturedRunner` replays a CUDA graph
of a step. Everything random is a function of the seed and the step number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from bighmm.base import processes, randomness
from bighmm.base.tensor_files import load_state, read_tensor
from bighmm.data.batches import Batch, Batches
from bighmm.train.averaging import Average
from bighmm.train.carrying import begun_anew, every_row, own_rows
from bighmm.train.losses import State, Window
from bighmm.train.sharding import ShardedAdamW
from bighmm.train.update import Optimizer, Update

# Names in a checkpoint begin so.
MODEL, OPTIMIZER, AVERAGE, CARRIED = "model.", "optimizer.", "average.", "carried."


@dataclass(frozen=True)
class StepResult:
    """A step that was done or, where `loss` or `norm` is not finite, could not be."""

    loss: float  # nats per token
    norm: float  # of the gradient, or of the expected counts
    size: float  # the learning rate, or the step size of Baum-Welch
    tokens: int

    @property
    def finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.norm)


class Runner(Protocol):
    @property
    def at_once(self) -> int:
        """How many steps are best asked for together."""
        ...

    def run(self, step: int, count: int) -> list[StepResult]:
        """Do steps `step` … `step + count - 1`; fewer come back where one could not be done."""
        ...

    def evaluated(self) -> AbstractContextManager[None]:
        """Context in which the parameters are those to evaluate and save."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint needs besides the step number; valid until the next step."""
        ...

    def restore(self, tensors: Mapping[str, Tensor]) -> None: ...

    def release(self) -> None:
        """Give back the memory that only further steps need, as there are none for now."""
        ...


class EagerRunner:
    """Steps one by one. With `full_batch` a step reads the batches of the first epoch, every time.

    changed: called after every change of the parameters.
    """

    at_once = 1

    def __init__(
        self,
        update: Update,
        batches: Batches,
        seed: int,
        *,
        full_batch: bool = False,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.update, self.batches, self.seed = update, batches, seed
        self.full_batch, self.changed = full_batch, changed
        self.device = next(update.params.parameters()).device
        self.state: State | None = None
        self._ahead: State | None = None  # the state after a step that has not been applied

    def run(self, step: int, count: int) -> list[StepResult]:
        results = []
        with _threads(getattr(self.update.params, "cpu_threads", None), self.device):
            for i in range(count):
                results.append(self.measure(step + i))
                if results[-1].finite:
                    self.apply(results[-1])
        return results

    def measure(self, step: int) -> StepResult:
        """The loss of a step and the norm of its update, before any parameter changes."""
        nats = torch.zeros((), dtype=torch.float64, device=self.device)
        key, tokens, state = randomness.key(self.seed, step), 0, self.state
        here = processes.current()
        self.update.begin()
        with self.update.precision():
            for batch in self._batches(step):
                window, every = on_device(batch, self.device), None
                if not here.alone:
                    every = len(window.ids)
                    window = window.rows(here.share(every))
                state = self._before(batch, state, len(window.ids), every)
                loss, state = self.update.accumulate(window, state, key)
                nats += loss.double() * int(batch.lengths.sum())
                tokens += int(batch.lengths.sum())
            finish = here.begin_sum([nats])
            norm = self.update.norm()
            finish()
        total, size = torch.stack([nats, norm.double()]).tolist()  # the host waits here, once
        self._ahead = {name: t.detach() for name, t in (state or {}).items()}
        return StepResult(total / tokens, size, self.update.size(step), tokens)

    def apply(self, result: StepResult) -> None:
        """Change the parameters as the step that was measured last says."""
        with self.update.precision():
            self.update.apply(result.size)
        self.changed()
        self.state = self._ahead

    def evaluated(self) -> AbstractContextManager[None]:
        return averaged(self.update.average, self.changed)

    def tensors(self) -> dict[str, Tensor]:
        update = self.update
        return saved_tensors(update.params, update.optimizer, self.state, update.average)

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        update = self.update
        self.state = restore_tensors(update.params, update.optimizer, tensors, update.average)
        self.changed()

    def release(self) -> None: ...

    def _before(self, batch: Batch, state: State | None, rows: int, every: int | None) -> State:
        """The state before a batch, some rows of which may go on from the carried `state`.

        rows: of this process, of `every` row of the batch if there are several.
        """
        if state is not None and np.all(batch.continues):
            return state
        initial = self.update.initial_state(rows, every)
        if state is None or not np.any(batch.continues):
            return initial
        goes_on = torch.as_tensor(batch.continues, device=self.device)
        return begun_anew(state, initial, goes_on, processes.current().share(len(batch.ids)))

    def _batches(self, step: int) -> Iterator[Batch]:
        if not self.full_batch:
            return iter([self.batches.batch(step)])
        return (self.batches.batch(i) for i in range(self.batches.steps_per_epoch))


@contextmanager
def _threads(most: int | None, device: torch.device) -> Iterator[None]:
    """Context in which torch uses so many threads at most."""
    before = torch.get_num_threads()
    if device.type != "cpu" or most is None or most >= before:
        yield
        return
    torch.set_num_threads(most)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def averaged(average: Average | None, changed: Callable[[], None]) -> Iterator[None]:
    """Context in which parameters are their average, if there is one.

    changed: called after every change of them.
    """
    if average is None:
        yield
        return
    try:
        with average.in_place():
            changed()
            yield
    finally:
        changed()


def on_device(batch: Batch, device: torch.device) -> Window:
    states = None if batch.states is None else torch.from_numpy(batch.states).to(device)
    ids, lengths = (torch.from_numpy(part).to(device) for part in (batch.ids, batch.lengths))
    return Window(ids, lengths, states)


def saved_tensors(
    params: nn.Module,
    optimizer: Optimizer | None,
    state: State | None,
    average: Average | None = None,
) -> dict[str, Tensor]:
    """Parameters, moments, their average and the carried state by name; themselves, no copies."""
    tensors = {f"{MODEL}{k}": v for k, v in params.state_dict().items()}
    if optimizer is not None:
        for index, moments in optimizer.state_dict()["state"].items():
            tensors |= {f"{OPTIMIZER}{index}.{k}": v for k, v in moments.items()}
    if average is not None:
        tensors |= {f"{AVERAGE}{k}": v for k, v in average.tensors().items()}
    return tensors | {f"{CARRIED}{k}": v for k, v in every_row(state or {}).items()}


def restore_tensors(
    params: nn.Module,
    optimizer: Optimizer | None,
    tensors: Mapping[str, Tensor],
    average: Average | None = None,
) -> State | None:
    """Put parameters, optimiser and average back; returns the carried state, if there was one.

    Tensors with other names than those of `saved_tensors` are ignored. Raises ValueError if they do
    not fit the parameters.
    """
    device = next(params.parameters()).device
    names = {name.removeprefix(MODEL): name for name in tensors if name.startswith(MODEL)}
    load_state(params, tensors, names, log_zeros=True)
    if optimizer is not None:
        parameters, load = _loading(optimizer)
        for name in tensors:
            if name.startswith(OPTIMIZER):
                index, _, moment = name.removeprefix(OPTIMIZER).partition(".")
                if not index.isdecimal() or int(index) >= len(parameters):
                    raise ValueError(f"the tensor {name} is of a parameter that the model lacks")
                # Of a sharded one, the device gets what is this process's.
                sharded = isinstance(optimizer, ShardedAdamW)
                place = torch.device("cpu") if sharded else device
                value, parameter = read_tensor(tensors, name, place), parameters[int(index)]
                if value.shape not in ((), parameter.shape, parameter.shape[:1]):
                    raise ValueError(f"the tensor {name} is of shape {list(value.shape)}")
                load(int(index), moment, value)
    if average is not None:
        average.restore(tensors, AVERAGE)
    carried = [name for name in tensors if name.startswith(CARRIED)]
    state = {n.removeprefix(CARRIED): read_tensor(tensors, n, device) for n in carried}
    return own_rows(state) if state else None


def _loading(
    optimizer: Optimizer,
) -> tuple[list[nn.Parameter], Callable[[int, str, Tensor], None]]:
    """The parameters of an optimiser without moments, and what gives one to the i-th of them."""
    if isinstance(optimizer, ShardedAdamW):
        optimizer.forget()
        return optimizer.parameters, optimizer.load_moment
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    optimizer.state.clear()

    def load(index: int, moment: str, value: Tensor) -> None:
        optimizer.state[parameters[index]][moment] = value

    return parameters, load
