"""Training in two phases: on words and their labels first, then on words alone."""

from __future__ import annotations

import torch
from torch import Tensor

from bighmm.learn.steps import Done, Steps

PHASE = "phase"  # the checkpoint's tensor that says which one it is of


class TwoPhases:
    """Steps of `first` up to the step `boundary`, then steps of `second`.

    Both train the same model with the same optimiser, so only what is carried differs.
    """

    def __init__(self, first: Steps, second: Steps, boundary: int) -> None:
        self.phases, self.boundary = (first, second), boundary
        self.number = 0 if boundary > 0 else 1

    @property
    def at_once(self) -> int:
        return self.phases[self.number].at_once

    def run(self, step: int, count: int) -> list[Done]:
        self.number = 0 if step < self.boundary else 1
        if self.number == 0:
            count = min(count, self.boundary - step)
        return self.phases[self.number].run(step, count)

    def tensors(self) -> dict[str, Tensor]:
        return {**self.phases[self.number].tensors(), PHASE: torch.tensor(self.number)}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        self.number = int(tensors[PHASE])
        others = {name: tensor for name, tensor in tensors.items() if name != PHASE}
        self.phases[self.number].restore(others)
