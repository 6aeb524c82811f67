"""HMMs of sequences that are not language: clicks, notes, events."""

from __future__ import annotations

from bighmm.sequences.estimator import SequenceHMM

__all__ = ["SequenceHMM"]
