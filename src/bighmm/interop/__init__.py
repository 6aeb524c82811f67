"""HMMs to and from other software.

- `arrays`: plain NumPy probabilities.
- `hmmlearn`: its `CategoricalHMM`.
- `ctrlg`: the folders that Ctrl-G reads and writes.
- `harness`: a model for EleutherAI's lm-evaluation-harness.
- `hugging_face`, `language_model`: loading Hugging Face models, and using them as language models.

The names below are imported when they are first used, because torch takes seconds to load.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bighmm.interop.arrays import to_numpy
    from bighmm.interop.ctrlg import from_ctrlg, to_ctrlg
    from bighmm.interop.hmmlearn import from_hmmlearn, to_hmmlearn

__all__ = ["from_ctrlg", "from_hmmlearn", "to_ctrlg", "to_hmmlearn", "to_numpy"]

_PLACES = {
    "from_ctrlg": "bighmm.interop.ctrlg",
    "from_hmmlearn": "bighmm.interop.hmmlearn",
    "to_ctrlg": "bighmm.interop.ctrlg",
    "to_hmmlearn": "bighmm.interop.hmmlearn",
    "to_numpy": "bighmm.interop.arrays",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)
