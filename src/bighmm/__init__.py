"""Hidden Markov language models with very many states."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str

    from bighmm.hmm import HMM, BestPath, Posterior
    from bighmm.lm.hmmlm import HMMLM
    from bighmm.sequences import SequenceHMM
    from bighmm.train.expectation_maximisation import baum_welch

__all__ = ["HMM", "HMMLM", "BestPath", "Posterior", "SequenceHMM", "baum_welch"]

_PLACES = {
    "HMM": "bighmm.hmm",
    "BestPath": "bighmm.hmm",
    "Posterior": "bighmm.hmm",
    "HMMLM": "bighmm.lm.hmmlm",
    "baum_welch": "bighmm.train.expectation_maximisation",
    "SequenceHMM": "bighmm.sequences",
}


def __getattr__(name: str) -> Any:
    """The public names, imported when they are first used: torch takes seconds to load."""
    if name == "__version__":
        from importlib.metadata import version

        return version("bighmm")
    if name == "constraints":  # a short name of the rules
        return importlib.import_module("bighmm.lm.rules")
    if name not in _PLACES:
        raise AttributeError(f"module 'bighmm' has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)
