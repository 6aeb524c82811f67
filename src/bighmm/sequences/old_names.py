"""Settings of a `SequenceHMM` under the names of the first version."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

RENAMED = {"parameters": "parameterisation", "n_alive": "n_states_per_symbol"}
InitT = TypeVar("InitT", bound=Callable[..., None])


def with_old_names(init: InitT) -> InitT:
    """A constructor that takes old names, too; its signature has the new ones alone."""

    @functools.wraps(init)
    def renaming(self: Any, *args: Any, **given: Any) -> None:
        for old in RENAMED.keys() & given.keys():
            _warn(f"{old} is now called {RENAMED[old]}")
            given[RENAMED[old]] = given.pop(old)
        if isinstance(given.get("support"), str) and given["support"] == "free":
            _warn("'free' is now called 'per-symbol'")
            given["support"] = "per-symbol"
        init(self, *args, **given)

    return renaming  # type: ignore[return-value]


def _warn(sentence: str) -> None:
    warnings.warn(sentence, DeprecationWarning, stacklevel=3)
