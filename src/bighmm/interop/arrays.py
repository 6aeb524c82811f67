"""HMMs as NumPy arrays of probabilities; `HMM.from_probs` is the inverse."""

from __future__ import annotations

import numpy as np
import torch

from bighmm.hmm import HMM

LIMIT = 2**28  # the most entries of a table: 2 GiB


def to_numpy(hmm: HMM, limit: int = LIMIT) -> dict[str, np.ndarray]:
    """The probabilities "start" (Z,), "transition" (Z, Z) and "emission" (Z, V) as float64.

    They do not include the end mark and whether the state is reset after it; `HMM.from_probs` has
    the arguments `end` and `reset` for these. Raises ValueError if a table would have more entries
    than `limit`.
    """
    check_size(hmm, limit)
    with torch.no_grad():
        tables = hmm.to("cpu", torch.float64).tables()
    names = ("start", "transition", "emission")
    return {name: table.numpy() for name, table in zip(names, tables, strict=True)}


def check_size(hmm: HMM, limit: int) -> None:
    """Raise ValueError if a dense table of an HMM would have more than `limit` entries."""
    states, vocabulary = hmm.num_states, hmm.vocabulary_size
    if states * max(states, vocabulary) > limit:
        raise ValueError(
            f"as plain tables {states:,} states and {vocabulary:,} tokens would be "
            f"{states:,} × {states:,} and {states:,} × {vocabulary:,} numbers, more than the limit "
            f"of {limit:,}; give a higher limit if there is memory for them"
        )
