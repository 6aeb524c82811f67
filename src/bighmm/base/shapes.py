"""Modules whose numbers are read from a file: their shapes, and making them without random numbers.

Shapes are found without memory for the numbers, so a file can be compared with them first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

FILLING = {"normal_", "uniform_", "mul", "mul_", "__mul__", "__rmul__"}


def shapes_of(make: Callable[[], nn.Module]) -> dict[str, torch.Size]:
    """The shapes of the state of the module that `make` would make, whatever its size."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"), _Unfilled():
        return {name: tensor.shape for name, tensor in make().state_dict().items()}


class Uninitialised(TorchFunctionMode):
    """Context in which random tensors have arbitrary numbers, which are read from a file next."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        if function in (torch.rand, torch.randn):
            function = torch.empty
        return function(*args, **(kwargs or {}))


class _Unfilled(Uninitialised):
    """Context in which tensors of the meta device are not filled with random numbers or scaled.

    They have no numbers anyway, and torch would import its decompositions of these functions first,
    which takes seconds.
    """

    def __torch_function__(
        self, function: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        first, *others = args or ((kwargs or {}).get("tensor"),)
        by_number = not any(isinstance(other, Tensor) for other in others)
        filling = getattr(function, "__name__", "") in FILLING and by_number
        if filling and isinstance(first, Tensor) and first.is_meta:
            return first
        return super().__torch_function__(function, types, args, kwargs)
