"""Kernels that are compiled at the same time, before they are needed.

Triton compiles a kernel when it is first launched, and so one after the other. With a step of
training that is ten to twenty seconds, while all but one of the processors have nothing to do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

THREADS = 8
EMPTY = {"aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty"}


def can_compile_together() -> bool:
    """Whether this version of Triton compiles kernels at the same time."""
    try:
        from triton.runtime import _async_compile  # noqa: F401
    except ImportError:
        return False
    return True


@contextmanager
def compiled_together() -> Iterator[None]:
    """Context in which kernels are not run but compiled, several at a time; all are at its end.

    What they would have written is zero. So the results of what is done in it mean nothing, and it
    must not depend on them which kernels are used. Not for several threads.
    """
    from triton.runtime import _async_compile
    from triton.runtime.jit import JITFunction

    run = JITFunction.run
    threads = max(1, min(THREADS, os.cpu_count() or 1))

    def only_compile(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        token = _async_compile.active_mode.set(together)  # the backward pass has its own thread
        try:
            return run(self, *args, grid=grid, warmup=True, **options)
        finally:
            _async_compile.active_mode.reset(token)

    with (
        ThreadPoolExecutor(threads) as executor,
        _async_compile.AsyncCompileMode(executor) as together,
    ):
        JITFunction.run = only_compile
        try:
            with _Zeroed():
                yield
        finally:
            JITFunction.run = run


class _Zeroed(TorchDispatchMode):
    """New tensors are zero, as indices among them must be possible ones."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func._schema.name in EMPTY:
            result.zero_()
        return result
