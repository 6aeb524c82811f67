"""Training steps: parameters, likelihood, gradient, clipping, AdamW.

`PlainSteps` does one at a time on any device. `graph.GraphSteps` does the same on a GPU as one
captured graph. Everything random is a function of the seed and the step number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bighmm.base import randomness
from bighmm.data.batches import Batch, Batches
from bighmm.infer import dense_triton
from bighmm.lm.baselines.neural import NeuralLM
from bighmm.model.support import Blocked, Dense
from bighmm.ops import use_triton
from bighmm.train.objective import Objective, State, Trainable, Window, make_objective
from bighmm.train.recipe import TrainingSettings
from bighmm.train.schedule import Schedule


@dataclass(frozen=True)
class Done:
    """A step that was done, or, where `loss` or `norm` is not finite, could not be."""

    loss: float  # nats per token
    norm: float  # of the gradient
    lr: float
    tokens: int


class Steps(Protocol):
    @property
    def at_once(self) -> int:
        """How many steps are best asked for together."""
        ...

    def run(self, step: int, count: int) -> list[Done]:
        """Do steps `step` … `step + count - 1`; fewer come back where one could not be done."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint needs besides the step number."""
        ...

    def restore(self, tensors: dict[str, Tensor]) -> None: ...

    def release(self) -> None:
        """Give back the memory that only further steps need, as there are none for now."""
        ...


def make_steps(
    lm: Trainable,
    batches: Batches,
    settings: TrainingSettings,
    schedule: Schedule,
    objective: Objective | None = None,
    optimizer: torch.optim.AdamW | None = None,
) -> Steps:
    """Captured steps on a GPU where that is possible and wanted, else plain ones."""
    capture = lm.device.type == "cuda" and settings.capture and can_be_captured(lm, batches)
    if settings.optimizer == "baum-welch":
        from bighmm.train.baum_welch import make_baum_welch_steps

        return make_baum_welch_steps(lm, batches, settings, schedule, capture)
    objective = objective or make_objective(lm, settings)
    optimizer = optimizer or make_optimizer(lm, settings)
    if capture:
        from bighmm.train.graph import Descent, GraphSteps

        update = Descent(lm, settings, schedule, objective, optimizer)
        return GraphSteps(lm, batches, settings.seed, update)
    return PlainSteps(lm, batches, settings, schedule, objective, optimizer)


def can_be_captured(lm: Trainable, batches: Batches) -> bool:
    """Whether all steps have the same shapes, and the host decides nothing within one.

    The number of states that a free support keeps varies. The torch forms of inference look at
    their numbers; kernels do not, and do any blocked model and the dense ones that fit them.
    """
    if batches.shape is None:
        return False
    if isinstance(lm, NeuralLM):
        return True
    if not use_triton(next(lm.params.parameters())):
        return False
    if isinstance(lm.params.support, Dense):
        with torch.no_grad():
            return dense_triton.fits(lm.params())
    return isinstance(lm.params.support, Blocked)


class PlainSteps:
    at_once = 1

    def __init__(
        self,
        lm: Trainable,
        batches: Batches,
        settings: TrainingSettings,
        schedule: Schedule,
        objective: Objective,
        optimizer: torch.optim.AdamW,
    ) -> None:
        self.lm, self.batches, self.settings, self.schedule = lm, batches, settings, schedule
        self.objective, self.optimizer = objective, optimizer
        self.carried: State | None = None

    def run(self, step: int, count: int) -> list[Done]:
        with self.objective.precision():
            return [self._one(step + i) for i in range(count)]

    def _one(self, step: int) -> Done:
        batch = self.batches.batch(step)
        window = on_device(batch, self.lm.device)
        carried = self.carried
        if carried is None or not batch.continues:
            carried = self.objective.begin(len(window.ids))
        key = randomness.key(self.settings.seed, step)
        loss, carried = self.objective.loss(window, carried, key)
        rate = self.schedule.rate(step)
        set_rate(self.optimizer, rate)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = clip(self.lm, self.optimizer, self.settings)
        nats, size = torch.stack([loss.detach(), norm]).tolist()  # the host waits here, once
        done = Done(nats, size, rate, int(batch.lengths.sum()))
        if math.isfinite(done.loss) and math.isfinite(done.norm):
            self.optimizer.step()
            self.lm.clear_cache()
            self.carried = {name: tensor.detach() for name, tensor in carried.items()}
        return done

    def tensors(self) -> dict[str, Tensor]:
        return saved_tensors(self.lm, self.optimizer, self.carried)

    def restore(self, tensors: dict[str, Tensor]) -> None:
        self.carried = restore_tensors(self.lm, self.optimizer, tensors)

    def release(self) -> None: ...


def on_device(batch: Batch, device: torch.device) -> Window:
    states = None if batch.states is None else torch.from_numpy(batch.states).to(device)
    ids, lengths = (torch.from_numpy(part).to(device) for part in (batch.ids, batch.lengths))
    return Window(ids, lengths, states)


def clip(lm: Trainable, optimizer: torch.optim.Optimizer, settings: TrainingSettings) -> Tensor:
    """The gradient's norm; where it is above the largest allowed, the step is made smaller.

    The fused optimiser of a GPU divides by a scale while it reads the gradients; elsewhere they
    are scaled here.
    """
    parameters = list(lm.params.parameters())
    largest = settings.clip or math.inf
    if lm.device.type != "cuda":
        return torch.nn.utils.clip_grad_norm_(parameters, largest)
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    optimizer.grad_scale = ((norm + 1e-6) / largest).clamp(min=1.0)  # type: ignore[attr-defined]
    return norm


def make_optimizer(lm: Trainable, settings: TrainingSettings) -> torch.optim.AdamW:
    on_gpu = lm.device.type == "cuda"
    rate = torch.tensor(settings.lr, device=lm.device) if on_gpu else settings.lr
    return torch.optim.AdamW(
        lm.params.parameters(),
        lr=rate,
        betas=(settings.beta1, settings.beta2),
        weight_decay=settings.weight_decay,
        fused=on_gpu or None,
        capturable=on_gpu,
    )


def set_rate(optimizer: torch.optim.Optimizer, rate: float | Tensor) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):
            group["lr"].copy_(torch.as_tensor(rate))
        else:
            group["lr"] = rate


def saved_tensors(
    lm: Trainable, optimizer: torch.optim.Optimizer | None, carried: State | None
) -> dict[str, Tensor]:
    tensors = {f"model.{k}": v for k, v in lm.params.state_dict().items()}
    if optimizer is not None:
        for index, state in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{k}": v for k, v in state.items()}
    tensors |= {f"carried.{k}": v for k, v in (carried or {}).items()}
    return {k: v.detach().cpu() for k, v in tensors.items()}


def restore_tensors(
    lm: Trainable, optimizer: torch.optim.Optimizer | None, tensors: dict[str, Tensor]
) -> State | None:
    """Put model and optimiser back, if there is one; what was carried comes back."""
    groups: dict[str, dict[str, Tensor]] = {"model": {}, "optimizer": {}, "carried": {}}
    for name, tensor in tensors.items():
        group, _, rest = name.partition(".")
        groups[group][rest] = tensor.to(lm.device)
    lm.params.load_state_dict(groups["model"])
    lm.clear_cache()
    if optimizer is not None:
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in groups["optimizer"].items():
            index, _, rest = name.partition(".")
            moments.setdefault(int(index), {})[rest] = tensor
        optimizer.load_state_dict({**optimizer.state_dict(), "state": moments})
    return groups["carried"] or None
