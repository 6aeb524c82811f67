"""The choice between the torch, the Triton and the compiled form of an operation."""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Literal

import torch
from torch import Tensor

Impl = Literal["auto", "torch", "triton", "compiled"]


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


def use_compiled(tensor: Tensor, impl: str = "auto") -> bool:
    """Whether to use the loops of an operation that numba compiles for a CPU, on `tensor`.

    Raises ValueError if they are asked for where they cannot run.
    """
    if impl not in ("auto", "compiled"):
        return False
    fits = tensor.device.type == "cpu" and tensor.dtype in (torch.float32, torch.float64)
    possible = fits and _numba_installed()
    if impl == "compiled" and not possible:
        raise ValueError(
            "impl='compiled' needs the package numba, which bighmm[fast] installs, and float32 or "
            "float64 on a CPU; use impl='auto'"
        )
    return possible


@cache
def _numba_installed() -> bool:
    return importlib.util.find_spec("numba") is not None


@cache
def _triton_installed() -> bool:
    return importlib.util.find_spec("triton") is not None


@cache
def _interpreting() -> bool:
    import triton

    return bool(triton.knobs.runtime.interpret)
