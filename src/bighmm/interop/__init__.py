"""HMMs to and from other software.

- `arrays`: plain NumPy probabilities.
- `hmmlearn`: its `CategoricalHMM`.
- `ctrlg`: the folders that Ctrl-G reads and writes.
- `harness`: a model for EleutherAI's lm-evaluation-harness.
- `hugging_face`, `language_model`: loading Hugging Face models, and using them as language models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bighmm.base.lazy import lazy_names

if TYPE_CHECKING:
    from bighmm.interop.arrays import to_numpy
    from bighmm.interop.ctrlg import from_ctrlg, to_ctrlg
    from bighmm.interop.hmmlearn import from_hmmlearn, to_hmmlearn
    from bighmm.interop.language_model import LanguageModel

__all__ = ["LanguageModel", "from_ctrlg", "from_hmmlearn", "to_ctrlg", "to_hmmlearn", "to_numpy"]

__getattr__ = lazy_names(
    __name__,
    {
        "bighmm.interop.arrays": ("to_numpy",),
        "bighmm.interop.ctrlg": ("from_ctrlg", "to_ctrlg"),
        "bighmm.interop.hmmlearn": ("from_hmmlearn", "to_hmmlearn"),
        "bighmm.interop.language_model": ("LanguageModel",),
    },
)
