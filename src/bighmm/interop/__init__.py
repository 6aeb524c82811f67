"""HMMs to and from other software.

- `arrays`: plain NumPy probabilities.
- `hmmlearn`: its `CategoricalHMM`.
- `ctrlg`: the folders that Ctrl-G reads and writes.
- `harness`: a model for EleutherAI's lm-evaluation-harness.
"""

from __future__ import annotations

from bighmm.interop.arrays import to_numpy
from bighmm.interop.ctrlg import from_ctrlg, to_ctrlg
from bighmm.interop.hmmlearn import from_hmmlearn, to_hmmlearn

__all__ = ["from_ctrlg", "from_hmmlearn", "to_ctrlg", "to_hmmlearn", "to_numpy"]
