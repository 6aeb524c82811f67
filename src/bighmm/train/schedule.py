"""Learning rates. Each schedule can be saved and restored as a small dictionary."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from bighmm.base.settings import Between, Count, fill
from bighmm.train.recipe import TrainingSettings


class Schedule(Protocol):
    def rate(self, step: int) -> float: ...

    def checked(self, valid_loss: float) -> None:
        """A validation gave this loss."""
        ...

    def state(self) -> dict[str, Any]: ...

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a `state`; ValueError if it is not one."""
        ...


def make_schedule(settings: TrainingSettings, total_steps: int) -> Schedule:
    if settings.schedule == "plateau":
        return Plateau(settings.lr, settings.plateau_factor, settings.plateau_patience)
    final = settings.final_lr if settings.schedule == "cosine" else 1.0
    return Cosine(settings.lr, round(settings.warmup * total_steps), total_steps, final)


class Plateau:
    """The rate is divided by `factor` after `patience` checks without a new best."""

    def __init__(self, lr: float, factor: float, patience: int) -> None:
        self.current, self.factor, self.patience = lr, factor, patience
        self.best, self.waited = math.inf, 0

    def rate(self, step: int) -> float:
        return self.current

    def checked(self, valid_loss: float) -> None:
        if valid_loss < self.best:
            self.best, self.waited = valid_loss, 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            self.current, self.waited = self.current / self.factor, 0

    def state(self) -> dict[str, Any]:
        best = self.best if math.isfinite(self.best) else None
        return {"current": self.current, "best": best, "waited": self.waited}

    def restore(self, state: dict[str, Any]) -> None:
        found = fill(PlateauState, state, "the schedule")
        self.current, self.waited = found.current, found.waited
        self.best = math.inf if found.best is None else found.best


@dataclass(frozen=True)
class PlateauState:
    current: Annotated[float, Between(0)]
    best: float | None
    waited: Count


class Cosine:
    """A linear rise over `warmup` steps, then half a cosine down to `final` times the rate.

    With `final` = 1 the rate stays where the rise ends.
    """

    def __init__(self, lr: float, warmup: int, total_steps: int, final: float) -> None:
        self.lr, self.warmup, self.total, self.final = lr, warmup, total_steps, final

    def rate(self, step: int) -> float:
        if step < self.warmup:
            return self.lr * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.total - self.warmup)
        share = self.final + (1 - self.final) * (1 + math.cos(math.pi * min(1.0, done))) / 2
        return self.lr * share

    def checked(self, valid_loss: float) -> None:
        pass

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass
