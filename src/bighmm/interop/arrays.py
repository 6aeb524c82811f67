"""An HMM as three NumPy arrays of probabilities. `HMM.from_probs` is the way back."""

from __future__ import annotations

import numpy as np
import torch

from bighmm.hmm import HMM

LIMIT = 2**28  # numbers in a table: 2 GiB


def to_numpy(hmm: HMM, limit: int = LIMIT) -> dict[str, np.ndarray]:
    """start (Z,), transition (Z, Z) and emission (Z, V) as float64, zero where it is impossible.

    What the HMM does after an end mark is not in them; `HMM.from_probs` takes it as `end` and
    `reset`. Raises ValueError if a table would have more numbers than `limit`.
    """
    check_size(hmm, limit)
    with torch.no_grad():
        tables = hmm.to("cpu", torch.float64).tables()
    names = ("start", "transition", "emission")
    return {name: table.numpy() for name, table in zip(names, tables, strict=True)}


def check_size(hmm: HMM, limit: int) -> None:
    """Raises ValueError if the plain tables of an HMM would have more than `limit` numbers."""
    states, vocabulary = hmm.num_states, hmm.vocabulary_size
    if states * max(states, vocabulary) > limit:
        raise ValueError(
            f"as plain tables {states:,} states and {vocabulary:,} tokens would be "
            f"{states:,} × {states:,} and {states:,} × {vocabulary:,} numbers, more than the limit "
            f"of {limit:,}; give a higher limit if there is memory for them"
        )
