"""Labels of a corpus: a folder with one state for each of the first training tokens.

labels.bin             the states, little-endian uint16, or uint32 for more than 65,536 states
centroids.safetensors  the centroid of every state in the teacher's space, and the projection used
manifest.json          corpus, teacher, states and settings, figures about the clusters, hashes of
                       the other files and of itself
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from torch import Tensor

from bighmm.base.files import check_hashes
from bighmm.base.json_files import read_object
from bighmm.base.settings import Positive, fill
from bighmm.base.tensor_files import check_numbers, read_tensors
from bighmm.base.verified import open_numbers
from bighmm.data.corpus import Corpus

FORMAT = 1  # raised whenever the same request would give other labels
LABELS, CENTROIDS, MANIFEST = "labels.bin", "centroids.safetensors", "manifest.json"


@dataclass(frozen=True, eq=False)
class Labels:
    """The states of the first training tokens of a corpus."""

    folder: Path
    manifest: dict[str, Any]
    states: np.ndarray  # (n,) uint16 or uint32, memory-mapped; later tokens have no state

    @property
    def num_states(self) -> int:
        return self.manifest["states"]["states"]

    def between(self, first: int, last: int) -> np.ndarray:
        """The states (last - first,) of training tokens first … last-1; -1 if a token has none."""
        result = np.full(last - first, -1, np.int64)
        known = self.states[first:last]
        result[: len(known)] = known
        return result

    def check_states(self, label_key: dict[str, Any]) -> None:
        """Raise ValueError if a model's states are not those of the labels.

        label_key: that of the model's support (`Support.label_key`).
        """
        own_key = self.manifest["states"]
        if label_key == own_key:
            return
        only_words_differ = {**label_key, "partition": None} == {**own_key, "partition": None}
        difference = (
            "with other words in its blocks" if only_words_differ else f"not {_in_words(label_key)}"
        )
        raise ValueError(
            f"the labels in {self.folder} are for a model that is {_in_words(own_key)}, "
            f"{difference}"
        )

    def centroids(self) -> dict[str, Tensor]:
        """The centroids of the states and how they were computed.

        "centroids" (Z, H) are in the teacher's space, "counts" (Z,) are the numbers of vectors; a
        state with count 0 has no centroid. If the vectors were projected to D principal components,
        there are also "centres" (Z, D), the centroids in that space, "pca.mean" (H,) and
        "pca.components" (D, H). Raises ValueError if the file is damaged.
        """
        path = self.folder / CENTROIDS
        tensors = read_tensors(path)
        try:
            for name, tensor in tensors.items():
                check_numbers(name, tensor)
        except ValueError as error:
            raise ValueError(f"{path} is damaged: {error}") from None
        return tensors


def open_labels(folder: str | Path, corpus: Corpus) -> Labels:
    """The labels in a folder that `make_labels` wrote for `corpus`.

    Raises ValueError with one sentence if there are no labels, or if they are damaged or belong to
    another corpus.
    """
    folder = Path(folder)
    if not (folder / MANIFEST).is_file():
        raise ValueError(f"{folder} holds no labels; `bighmm distill` makes them")
    found = read_object(folder / MANIFEST)
    if found.get("format") != FORMAT:
        raise ValueError(f"{folder / MANIFEST} is not what this version writes; make labels again")
    try:
        manifest = fill(Manifest, found, f"{folder / MANIFEST} is damaged: it")
        states = _check_files(folder, manifest)
    except ValueError as error:
        raise ValueError(f"{error}; delete the folder and make labels again") from None
    if manifest.corpus.fingerprint != corpus.fingerprint:
        raise ValueError(
            f"the labels in {folder} were made for the corpus {manifest.corpus.name} as it was "
            f"then, and this one ({corpus.manifest['source']['name']}) differs in its text or "
            "vocabulary; make labels for it"
        )
    if manifest.tokens > len(corpus.split("train")):
        raise ValueError(f"{folder / MANIFEST} is damaged: there are fewer tokens than labels")
    return Labels(folder, found, states)


@dataclass(frozen=True)
class CorpusEntry:
    fingerprint: str
    vocabulary: str
    name: str


@dataclass(frozen=True)
class StatesEntry:
    """The key of a support (`Support.label_key`)."""

    kind: Literal["dense", "blocked"]
    states: Positive
    blocks: Positive | None = None
    partition: str | None = None


@dataclass(frozen=True)
class Manifest:
    """The content of manifest.json."""

    format: int
    key: str  # hash of the request
    corpus: CorpusEntry
    teacher: dict[str, Any]
    states: StatesEntry
    tokens: Positive
    dtype: Literal["<u2", "<u4"]
    settings: dict[str, Any]
    device: str
    result: dict[str, Any]
    files: dict[str, str] | None = None  # SHA-256 by name; the first version had none


def _check_files(folder: Path, manifest: Manifest) -> np.ndarray:
    """The labels; ValueError if they or the centroids are not those of the manifest."""
    path, sha256 = folder / LABELS, None
    if not path.is_file():
        raise ValueError(f"{folder} has no {LABELS}; it is not complete")
    if manifest.files is not None:
        sha256 = manifest.files.get(LABELS, "none")
        others = {name: value for name, value in manifest.files.items() if name != LABELS}
        check_hashes(folder, others, [CENTROIDS])
    number = manifest.states.states
    return open_numbers(path, manifest.dtype, manifest.tokens, below=number, sha256=sha256)


def _in_words(states: dict[str, Any]) -> str:
    if states["kind"] == "dense":
        return f"dense with {states['states']:,} states"
    return f"blocked with {states['states']:,} states in {states.get('blocks')} blocks"
