"""What a model's states stand for, and which states explain a text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bighmm.base.lazy import lazy_names

if TYPE_CHECKING:
    from bighmm.inspect.choosing import choose_states, probs_given_word
    from bighmm.inspect.plot import plot_posterior
    from bighmm.inspect.states import (
        Likeliest,
        end_probs,
        likely_words,
        next_states,
        previous_states,
        state_shares,
    )
    from bighmm.inspect.tables import (
        posterior_table,
        state_table,
        states_of_corpus,
        tag_table,
    )

__all__ = [
    *("Likeliest", "choose_states", "end_probs", "likely_words", "next_states", "plot_posterior"),
    *("posterior_table", "previous_states", "probs_given_word", "state_shares", "state_table"),
    *("states_of_corpus", "tag_table"),
]

__getattr__ = lazy_names(
    __name__,
    {
        "bighmm.inspect.choosing": ("choose_states", "probs_given_word"),
        "bighmm.inspect.plot": ("plot_posterior",),
        "bighmm.inspect.states": (
            "Likeliest",
            "end_probs",
            "likely_words",
            "next_states",
            "previous_states",
            "state_shares",
        ),
        "bighmm.inspect.tables": (
            "posterior_table",
            "state_table",
            "states_of_corpus",
            "tag_table",
        ),
    },
)
