"""Hidden Markov language models with very many states."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from bighmm.base.lazy import lazy_names

if TYPE_CHECKING:
    __version__: str

    from bighmm.hmm import HMM, BestPath, Posterior
    from bighmm.lm.hmmlm import HMMLM
    from bighmm.sequences import SequenceHMM
    from bighmm.train.expectation_maximisation import baum_welch

__all__ = ["HMM", "HMMLM", "BestPath", "Posterior", "SequenceHMM", "baum_welch"]

_find = lazy_names(
    __name__,
    {
        "bighmm.hmm": ("HMM", "BestPath", "Posterior"),
        "bighmm.lm.hmmlm": ("HMMLM",),
        "bighmm.sequences": ("SequenceHMM",),
        "bighmm.train.expectation_maximisation": ("baum_welch",),
    },
)


def __dir__() -> list[str]:
    """The public names, which are imported when they are first used."""
    marks = {name for name in globals() if name.startswith("__")}
    return sorted({*marks, *__all__, "__version__", "answers", "constraints"})


def __getattr__(name: str) -> Any:
    """The version, the public names, `answers`, and `constraints`, a short name of `lm.rules`."""
    if name == "__version__":
        from importlib.metadata import version

        return version("bighmm")
    if name == "answers":
        return importlib.import_module("bighmm.answers")
    if name == "constraints":
        return importlib.import_module("bighmm.lm.rules")
    return _find(name)
