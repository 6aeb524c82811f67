"""Updates: what a training step does to the parameters, on windows that are on the device.

`Descent` takes AdamW steps on the gradient of a loss. The other update, expectation maximisation,
is in a file of its own. A runner calls `begin`, then `accumulate` for each window of the step, then
`norm` and `apply`. None of these asks the host for a number, so a graph can hold all of them.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from bighmm.base import processes
from bighmm.data.batches import Batch
from bighmm.model.params import Parameterisation
from bighmm.train.averaging import Average
from bighmm.train.gradients import GradientSum, numbers_of
from bighmm.train.losses import Loss, State, Window
from bighmm.train.recipe import TrainingSettings
from bighmm.train.row_adamw import RowAdamW
from bighmm.train.schedule import Schedule
from bighmm.train.sharding import ShardedAdamW

Optimizer = torch.optim.AdamW | ShardedAdamW


class Update(Protocol):
    @property
    def params(self) -> nn.Module:
        """The module whose parameters are changed."""
        ...

    @property
    def optimizer(self) -> Optimizer | None: ...

    @property
    def average(self) -> Average | None:
        """Of the parameters, where it is evaluated in their place."""
        ...

    def initial_state(self, rows: int, every: int | None = None) -> State:
        """What is carried into the first window of a text; it has some `rows` of `every` row."""
        ...

    def size(self, step: int) -> float:
        """The learning rate of a step, or the step size of Baum-Welch."""
        ...

    def prepare(self, batches: Sequence[Batch]) -> Hashable:
        """Get ready for these batches; equal results mean steps of the same shapes."""
        ...

    def begin(self) -> None:
        """Forget what was accumulated."""
        ...

    def accumulate(self, window: Window, state: State, key: Tensor) -> tuple[Tensor, State]:
        """Nats per token of a window, and what is carried on; its gradient or counts are added."""
        ...

    def norm(self) -> Tensor:
        """The norm of what was accumulated, by all processes, whose sum it is from here on.

        Where the update clips, it is limited too.
        """
        ...

    def apply(self, size: float | Tensor) -> None:
        """Change the parameters."""
        ...

    def precision(self) -> AbstractContextManager[None]:
        """Context manager that sets the precision of matrix products in a step."""
        ...


class Descent:
    """AdamW on the gradient of a loss, with the gradient's norm clipped.

    average: counts the parameters after every step.
    """

    def __init__(
        self,
        params: nn.Module,
        loss: Loss,
        settings: TrainingSettings,
        schedule: Schedule,
        optimizer: Optimizer | None = None,
        average: Average | None = None,
    ) -> None:
        self.params, self.loss, self.average = params, loss, average
        self.largest_norm = settings.clip or math.inf
        self.optimizer = optimizer or make_optimizer(params, settings)
        self.schedule = schedule
        self.windows = 0  # of the step so far
        here = processes.current()
        self.summed = None if here.alone else GradientSum(params.parameters(), here)
        if isinstance(params, Parameterisation):
            params.row_gradients = settings.rows == "touched"

    def initial_state(self, rows: int, every: int | None = None) -> State:
        return self.loss.initial_state(rows, every)

    def size(self, step: int) -> float:
        return self.schedule.rate(step)

    def precision(self) -> AbstractContextManager[None]:
        return self.loss.precision()

    def prepare(self, batches: Sequence[Batch]) -> Hashable:
        return self.loss.prepare(batches)

    def begin(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.windows = 0

    def accumulate(self, window: Window, state: State, key: Tensor) -> tuple[Tensor, State]:
        self.windows += 1
        if self.summed is None:
            loss, state = self.loss(window, state, key)
            loss.backward()
        else:
            assert self.windows == 1, "gradients are sent during the only backward pass of a step"
            with processes.in_step():
                loss, state = self.loss(window, state, key)
            with self.summed.collecting():
                loss.backward()
        return loss.detach(), state

    def norm(self) -> Tensor:
        """The fused optimiser of a GPU divides by a scale while it reads the gradients; elsewhere
        they are scaled here.
        """
        if self.summed is not None:
            self.summed.finish()
        gradients = self._gradients()
        norm = torch.nn.utils.get_total_norm(gradients)
        if next(self.params.parameters()).is_cuda:
            scale = ((norm + 1e-6) / self.largest_norm).clamp(min=1.0)
            self.optimizer.grad_scale = scale  # type: ignore[union-attr]
            return norm
        share = (self.largest_norm / (norm + 1e-6)).clamp(max=1.0)
        for gradient in gradients:
            gradient.mul_(share)
        return norm

    def apply(self, size: float | Tensor) -> None:
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].copy_(torch.as_tensor(size))
            else:
                group["lr"] = size
        self.optimizer.step()
        if self.average is not None:
            self.average.add()

    def _gradients(self) -> list[Tensor]:
        """The numbers of all gradients, of sparse ones those of their rows."""
        found = []
        for parameter in self.params.parameters():
            grad = parameter.grad
            if grad is not None and grad.is_sparse and self.windows > 1:
                parameter.grad = grad.coalesce()  # a row may be in several windows
            numbers = numbers_of(parameter)
            if numbers is not None:
                found.append(numbers)
        return found


def make_optimizer(params: nn.Module, settings: TrainingSettings) -> Optimizer:
    """AdamW for all parameters of a module; fused, and capturable on a GPU.

    With `rows = "touched"`, one that changes only the rows of embeddings that had a gradient.
    Parameters with other weight decays are groups of their own. With `shard_optimizer` each of
    several processes has the moments of some rows.
    """
    device = next(params.parameters()).device
    on_gpu = device.type == "cuda"
    given: dict[str, Any] = {
        "lr": torch.tensor(settings.lr, device=device) if on_gpu else settings.lr,
        "betas": (settings.beta1, settings.beta2),
        "weight_decay": settings.weight_decay,
        "fused": True,  # one pass over the numbers, on a CPU too
        "capturable": on_gpu,
    }
    tables = []  # `embeddings` has the networks of factored ones too, which have no rows of states
    if settings.rows == "touched" and isinstance(params, Parameterisation):
        words = params.word_embedding()
        tables = [*params.state_embeddings(), *([] if words is None else [words])]

    def make(groups: list[dict[str, Any]], some: list[nn.Parameter]) -> torch.optim.AdamW:
        if settings.rows == "all":
            return torch.optim.AdamW(groups, **given)
        return RowAdamW(groups, tables=some, **given)

    groups, here = decay_groups(params, settings), processes.current()
    if settings.shard_optimizer and not here.alone:
        return ShardedAdamW(groups, make, here, tables)
    return make(groups, tables)


def decay_groups(params: nn.Module, settings: TrainingSettings) -> list[dict[str, Any]]:
    """The parameters by weight decay, in their order within each group; one group if it is one.

    Roles are state embeddings, word embeddings and all others. Raises ValueError for a decay of
    embeddings that the model does not have.
    """
    words = params.word_embedding() if isinstance(params, Parameterisation) else None
    embeddings = params.embeddings() if isinstance(params, Parameterisation) else []
    of_words = {id(words)} - {id(None)}
    of_states = {id(parameter) for parameter in embeddings} - of_words
    decays = {
        "states": settings.weight_decay_states,
        "words": settings.weight_decay_words,
        "networks": settings.weight_decay_networks,
    }
    for role, found in (("states", of_states), ("words", of_words)):
        if decays[role] is not None and not found:
            raise ValueError(f"the {role} of this model have no embeddings to take decay from")
    groups: dict[float, list[nn.Parameter]] = {}
    for parameter in params.parameters():
        here = "states" if id(parameter) in of_states else "networks"
        decay = decays["words" if id(parameter) in of_words else here]
        decay = settings.weight_decay if decay is None else decay
        groups.setdefault(decay, []).append(parameter)
    return [{"params": some, "weight_decay": decay} for decay, some in groups.items()]
