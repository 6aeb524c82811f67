"""What a model's states stand for, and which states explain a text.

The names below are imported when they are first used, because torch takes seconds to load.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bighmm.inspect.plot import plot_posterior
    from bighmm.inspect.states import (
        Likeliest,
        likely_words,
        next_states,
        previous_states,
        state_shares,
    )
    from bighmm.inspect.tables import (
        posterior_table,
        rank_states,
        state_table,
        states_of_corpus,
        tag_table,
    )

__all__ = [
    "Likeliest",
    "likely_words",
    "next_states",
    "plot_posterior",
    "posterior_table",
    "previous_states",
    "rank_states",
    "state_shares",
    "state_table",
    "states_of_corpus",
    "tag_table",
]

_MODULES = {
    "plot": ("plot_posterior",),
    "states": ("Likeliest", "likely_words", "next_states", "previous_states", "state_shares"),
    "tables": ("posterior_table", "rank_states", "state_table", "states_of_corpus", "tag_table"),
}
_PLACES = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)
