"""A table of Brown clusters to show to people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bighmm.data.brown.clustering import Clusters


@dataclass(frozen=True)
class ClassWords:
    """One class and its most frequent words."""

    path: str
    size: int  # number of words in the class
    words: list[str]


def class_table(
    clusters: Clusters, words: Sequence[str], counts: np.ndarray, top: int = 10
) -> list[ClassWords]:
    """Every class with its `top` most frequent words; `words` and `counts` are (V,)."""
    rows = []
    for number, path in enumerate(clusters.paths):
        members = np.flatnonzero(clusters.classes == number)
        members = members[np.argsort(-counts[members], kind="stable")]
        rows.append(ClassWords(path, len(members), [words[i] for i in members[:top]]))
    return rows
