"""A training run on disk: what is needed to go on exactly where it was.

RUN/recipe.json            the resolved recipe and the corpus' fingerprint
RUN/log.jsonl              one line per logged step and check
RUN/model/                 the best model so far (HMMLM)
RUN/checkpoint/            parameters, optimiser, schedule, carried state, position
RUN/checkpoint.previous/   the one before
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from bighmm.base.files import (
    check_hashes,
    existing_folder,
    hashes,
    previous_folder,
    replace_folder,
    write_json,
)
from bighmm.base.json_files import read_json, read_object
from bighmm.base.tensor_files import TensorFile, write_tensors

TENSORS, STATE, MANIFEST = "tensors.safetensors", "state.json", "manifest.json"


@dataclass(frozen=True)
class Checkpoint:
    tensors: Mapping[str, Tensor]  # on any device; those of a file are read when asked for
    state: dict[str, Any]  # JSON values


def save_checkpoint(run: Path, checkpoint: Checkpoint) -> None:
    """Put a new checkpoint in place; whatever happens on the way, the last one stays usable."""

    def fill(folder: Path) -> None:
        write_tensors(folder / TENSORS, checkpoint.tensors)
        write_json(folder / STATE, checkpoint.state)
        write_json(folder / MANIFEST, hashes(folder))

    replace_folder(run / "checkpoint", fill, keep_previous=True)


def load_checkpoint(run: Path) -> tuple[Checkpoint, str | None]:
    """The last checkpoint of a run, and a warning if an older one had to be taken.

    Raises ValueError if there is none that can be read.
    """
    newest = existing_folder(run / "checkpoint")
    if newest is None:
        raise ValueError(f"{run} has no checkpoint to resume from")
    try:
        return _read(newest), None
    except ValueError as error:
        older = previous_folder(run / "checkpoint")
        if older is None or older == newest:
            raise
        return _read(older), f"{error}; going on from the checkpoint before it"


def _read(folder: Path) -> Checkpoint:
    check_hashes(folder, read_json(folder / MANIFEST), (TENSORS, STATE))
    return Checkpoint(TensorFile(folder / TENSORS), read_object(folder / STATE))
