"""HMMs of sequences that are not language: clicks, notes, events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bighmm.sequences.estimator import SequenceHMM

__all__ = ["SequenceHMM"]


def __getattr__(name: str) -> Any:
    """`SequenceHMM`, imported when it is first used, because torch takes seconds to load."""
    if name != "SequenceHMM":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from bighmm.sequences.estimator import SequenceHMM

    return SequenceHMM
