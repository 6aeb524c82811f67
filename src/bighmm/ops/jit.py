"""Compiled loops for a CPU: numba's decorator, and work that is spread over threads.

numba is an optional package (`bighmm[fast]`); this is imported only where `impl.use_compiled` says
so. Machine code is cached where numba keeps it, beside the source or in a folder of the user (or in
`NUMBA_CACHE_DIR`); where none of them can be written it is made once per process.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, lru_cache
from typing import Any

import numba
import numpy as np
import torch

WORTH_A_THREAD = 2**20  # multiplications; less is done before another thread has begun


def jit(*fastmath: str) -> Callable[[Callable[..., Any]], Any]:
    """A decorator that compiles a function at its first call, without holding Python's lock.

    fastmath: liberties with the order of sums, as LLVM names them.
    """

    def compile(function: Callable[..., Any]) -> Any:
        options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
        options["fastmath"] = set(fastmath) if fastmath else False
        try:
            return numba.njit(cache=True, **options)(function)
        except RuntimeError:  # no folder of a cache can be written
            return numba.njit(**options)(function)

    return compile


def over_rows(work: Callable[[np.ndarray], None], lengths: np.ndarray, cost: int) -> None:
    """Call `work` with row numbers, longest rows first: once, or in parts on several threads.

    cost: multiplications of one position. As many threads as torch may use.
    """
    if len(lengths) == 1:
        work(first_rows(1))
        return
    order = np.argsort(-lengths, kind="stable")
    most = min(torch.get_num_threads(), len(order), int(lengths.sum()) * cost // WORTH_A_THREAD)
    if most < 2:
        work(order)
        return
    done = [_pool(most).submit(work, np.ascontiguousarray(order[i::most])) for i in range(most)]
    for part in done:
        part.result()


@lru_cache(16)
def first_rows(count: int) -> np.ndarray:
    """0, 1, … count - 1, which are not to be changed."""
    return np.arange(count)


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="bighmm")
