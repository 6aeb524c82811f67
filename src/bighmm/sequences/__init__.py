"""HMMs of sequences that are not language: clicks, notes, events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bighmm.base.lazy import lazy_names

if TYPE_CHECKING:
    from bighmm.sequences.errors import NotFittedError
    from bighmm.sequences.estimator import SequenceHMM
    from bighmm.sequences.online import OnlineFilter
    from bighmm.sequences.progress import ConvergenceWarning

__all__ = ["ConvergenceWarning", "NotFittedError", "OnlineFilter", "SequenceHMM"]

__getattr__ = lazy_names(
    __name__,
    {
        "bighmm.sequences.errors": ("NotFittedError",),
        "bighmm.sequences.estimator": ("SequenceHMM",),
        "bighmm.sequences.online": ("OnlineFilter",),
        "bighmm.sequences.progress": ("ConvergenceWarning",),
    },
)
