"""Labels on the disk: one state for each of the first training tokens of a corpus.

labels.bin             the states, little-endian uint16, or uint32 for more than 65,536 states
centroids.safetensors  the centre of every state in the teacher's space, and how it was found
manifest.json          corpus, teacher, states and settings, and what came of them
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from bighmm.base.files import read_json
from bighmm.data.corpus import Corpus

FORMAT = 1  # raised whenever the same request would give other labels
LABELS, CENTROIDS, MANIFEST = "labels.bin", "centroids.safetensors", "manifest.json"


@dataclass(frozen=True, eq=False)
class Labels:
    """The states of the first training tokens of a corpus."""

    folder: Path
    manifest: dict[str, Any]
    states: np.ndarray  # (n,) uint16 or uint32, memory-mapped; tokens from n on have none

    @property
    def num_states(self) -> int:
        return self.manifest["states"]["states"]

    def between(self, first: int, last: int) -> np.ndarray:
        """The states of training tokens first … last-1 as int64; -1 where a token has none."""
        found = np.full(last - first, -1, np.int64)
        known = self.states[first:last]
        found[: len(known)] = known
        return found

    def check_states(self, wanted: dict[str, Any]) -> None:
        """ValueError if a model has other states than the labels name.

        wanted: the key of its support (`Support.label_key`).
        """
        found = self.manifest["states"]
        if wanted == found:
            return
        same_but_words = {**wanted, "partition": None} == {**found, "partition": None}
        difference = (
            "with other words in its blocks" if same_but_words else f"not {_in_words(wanted)}"
        )
        raise ValueError(
            f"the labels in {self.folder} are for a model that is {_in_words(found)}, {difference}"
        )

    def centroids(self) -> dict[str, Tensor]:
        """ "centroids" (Z, H) in the teacher's space and "counts" (Z,), 0 where there is none.

        With principal components also "centres" (Z, D) among these, "pca.mean" (H,) and
        "pca.components" (D, H).
        """
        return read_tensors(self.folder / CENTROIDS)


def open_labels(folder: str | Path, corpus: Corpus) -> Labels:
    """Labels that `make_labels` wrote, for the corpus that they were made for.

    Raises ValueError with one sentence if there are none, they are damaged, or belong to another
    corpus.
    """
    folder = Path(folder)
    if not (folder / MANIFEST).is_file():
        raise ValueError(f"{folder} holds no labels; `bighmm distill` makes them")
    manifest = read_json(folder / MANIFEST)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ValueError(f"{folder / MANIFEST} is not what this version writes; make labels again")
    if manifest["corpus"]["fingerprint"] != corpus.fingerprint:
        raise ValueError(
            f"the labels in {folder} were made for the corpus {manifest['corpus']['name']} as it "
            f"was then, and this one ({corpus.manifest['source']['name']}) differs in its text or "
            "vocabulary; make labels for it"
        )
    return Labels(folder, manifest, _read_labels(folder, manifest))


def read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} is missing or damaged: {error}") from None


def _read_labels(folder: Path, manifest: dict[str, Any]) -> np.ndarray:
    path, dtype = folder / LABELS, np.dtype(manifest["dtype"])
    size = manifest["tokens"] * dtype.itemsize
    if not path.is_file() or path.stat().st_size != size:
        raise ValueError(
            f"{path} is missing or damaged, it should have {size} bytes; delete its folder and "
            "make labels again"
        )
    return np.memmap(path, dtype=dtype, mode="r")


def _in_words(states: dict[str, Any]) -> str:
    if states["kind"] == "dense":
        return f"dense with {states['states']:,} states"
    return f"blocked with {states['states']:,} states in {states['blocks']} blocks"
