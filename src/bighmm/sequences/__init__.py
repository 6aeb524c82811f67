"""HMMs of sequences that are not language: clicks, notes, events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bighmm.base.lazy import lazy_names

if TYPE_CHECKING:
    from bighmm.sequences.estimator import SequenceHMM

__all__ = ["SequenceHMM"]

__getattr__ = lazy_names(
    __name__,
    {
        "bighmm.sequences.estimator": ("SequenceHMM",),
    },
)
