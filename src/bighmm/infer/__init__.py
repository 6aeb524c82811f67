"""Exact inference on an `HMM`. Nothing here knows how the HMM was made.

`dense` and `blocked` answer the same questions with the same results; `engine` picks one.
"""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

from bighmm.infer import blocked, dense
from bighmm.model.support import Dense

if TYPE_CHECKING:
    from bighmm.hmm import HMM


def engine(hmm: HMM) -> ModuleType:
    """The module whose `advance`, `posterior`, `viterbi` and `predict_states` fit `hmm`."""
    return dense if isinstance(hmm.support, Dense) else blocked
