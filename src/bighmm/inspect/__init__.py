"""What a model's states stand for, and what it thinks of one text."""

from __future__ import annotations

from bighmm.inspect.plot import plot_posterior
from bighmm.inspect.states import (
    Likeliest,
    likely_words,
    next_states,
    previous_states,
    state_shares,
)
from bighmm.inspect.tables import posterior_table, state_table

__all__ = [
    "Likeliest",
    "likely_words",
    "next_states",
    "plot_posterior",
    "posterior_table",
    "previous_states",
    "state_shares",
    "state_table",
]
