"""The choice between the torch and the Triton form of an operation."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Literal

from torch import Tensor

Impl = Literal["auto", "torch", "triton"]


def use_triton(tensor: Tensor, impl: str = "auto") -> bool:
    """Whether to use the Triton form of an operation on `tensor`.

    Any name other than "auto" and "triton" is that of a torch form. Raises ValueError if Triton is
    asked for where it cannot run.
    """
    if impl not in ("auto", "triton"):
        return False
    possible = _triton_installed() and (tensor.is_cuda or _interpreting())
    if impl == "triton" and not possible:
        raise ValueError("impl='triton' needs a GPU and the package triton; use impl='auto'")
    return possible and (impl == "triton" or tensor.is_cuda)


@cache
def _triton_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


@cache
def _interpreting() -> bool:
    import triton

    return bool(triton.knobs.runtime.interpret)
