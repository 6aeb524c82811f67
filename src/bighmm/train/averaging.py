"""The exponential average of the parameters over the steps, which is evaluated in their place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from bighmm.base.tensor_files import read_tensor


class Average:
    """Of parameters θ after n steps: Σ_s (1 − d) d^(n − s) θ_s / (1 − dⁿ), with decay d.

    `add` asks the host for nothing, so a graph can hold it. It reads and writes every row of every
    table, also where an optimiser changes few of them.
    """

    def __init__(self, params: nn.Module, decay: float) -> None:
        self.parameters, self.decay = dict(params.named_parameters()), decay
        self.sums = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        device = next(params.parameters()).device
        self.steps = torch.zeros((), dtype=torch.long, device=device)

    @torch.no_grad()
    def add(self) -> None:
        """Count the parameters as they are now."""
        sums, parameters = tuple(self.sums.values()), tuple(self.parameters.values())
        torch._foreach_lerp_(sums, parameters, 1 - self.decay)
        self.steps += 1

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Context in which the parameters are the average; afterwards they are what they were.

        Before the first step they stay as they are.
        """
        if int(self.steps) == 0:
            yield
            return
        weight = 1 - self.decay ** int(self.steps)
        before = {name: p.detach().clone() for name, p in self.parameters.items()}
        with torch.no_grad():
            for name, parameter in self.parameters.items():
                torch.div(self.sums[name], weight, out=parameter)
        try:
            yield
        finally:
            with torch.no_grad():
                for name, parameter in self.parameters.items():
                    parameter.copy_(before[name])

    def tensors(self) -> dict[str, Tensor]:
        """All that a checkpoint needs; themselves, no copies."""
        return {"steps": self.steps, **{f"sum.{name}": t for name, t in self.sums.items()}}

    def restore(self, tensors: Mapping[str, Tensor], prefix: str) -> None:
        """Put back what `tensors` gave, from tensors whose names begin with `prefix`."""
        for name, target in self.tensors().items():
            target.copy_(read_tensor(tensors, prefix + name, target.device))
