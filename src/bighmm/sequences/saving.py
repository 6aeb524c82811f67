"""A fitted `SequenceHMM` as a folder.

config.json         its settings, which are those of the next fit; the kind of its support, its
                    number of symbols and its history, as they were fitted
model.safetensors   start, what the transitions are made of, emissions, the support's table
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from bighmm.base.files import (
    check_hashes,
    existing_folder,
    hashes,
    is_earlier_save,
    read_json,
    replace_folder,
    write_json,
    write_tensors,
)
from bighmm.hmm import HMM
from bighmm.model.emissions import EmissionTable
from bighmm.model.support import Blocked, Dense, Free, Support
from bighmm.model.transitions import Factored, Table, Transitions

if TYPE_CHECKING:
    from bighmm.sequences.estimator import SequenceHMM

CONFIG, WEIGHTS = "config.json", "model.safetensors"
FORMAT = "bighmm.SequenceHMM 1"


def save(model: SequenceHMM, folder: Path) -> None:
    hmm = model.hmm_
    settings = {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in model.get_params().items()
    }
    settings["initial"] = None  # the fitted HMM is what is kept
    if not isinstance(settings["random_state"], int):
        settings["random_state"] = None
    tensors = {"start": hmm.start, "emission": hmm.emission}
    tensors |= {f"transition.{n}": t for n, t in enumerate(hmm.transitions.operands)}
    if isinstance(hmm.support, Blocked):
        tensors["support"] = hmm.support.partition.block_of
    elif isinstance(hmm.support, Free):
        tensors["support"] = hmm.support.table
    config = {
        "format": FORMAT,
        "settings": settings,
        "support": type(hmm.support).__name__,
        "n_symbols": model.n_symbols_,
        "history": model.history_,
    }

    def fill(fresh: Path) -> None:
        write_tensors(fresh / WEIGHTS, tensors)
        write_json(fresh / CONFIG, config | {"files": hashes(fresh)})

    replace_folder(folder, fill, keep_previous=False, earlier=_is_written)


def load(kind: type[SequenceHMM], folder: Path) -> SequenceHMM:
    found = existing_folder(folder)
    if found is None:
        raise ValueError(f"there is no folder {folder}; give one that a SequenceHMM was saved to")
    folder = found
    config: Any = read_json(folder / CONFIG)
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise ValueError(f"{folder / CONFIG} is not the configuration of a SequenceHMM")
    try:
        check_hashes(folder, config["files"])
        tensors = load_file(folder / WEIGHTS)
        model = kind(**config["settings"])
        model.n_symbols_, model.history_ = config["n_symbols"], config["history"]
        support = _support(config["support"], tensors, model.n_symbols_)
        emissions = EmissionTable(tensors["emission"])
        model.hmm_ = HMM(tensors["start"], _transitions(tensors), emissions, support)
    except (KeyError, TypeError, OSError, SafetensorError) as error:
        raise ValueError(f"{folder} is damaged: {type(error).__name__}: {error}") from None
    return model


def _is_written(folder: Path) -> bool:
    """Whether a folder is one that `save` wrote, and has no other files."""
    return is_earlier_save(folder, CONFIG, [WEIGHTS], lambda c: c.get("format") == FORMAT)


def _transitions(tensors: dict[str, Tensor]) -> Transitions:
    if "transition.1" in tensors:
        return Factored(tensors["transition.0"], tensors["transition.1"])
    return Table(tensors["transition.0"])


def _support(name: str, tensors: dict[str, Tensor], symbols: int) -> Support:
    states = len(tensors["start"])  # as fitted, whatever the settings say now
    if name == "Blocked":
        return Blocked.of(tensors["support"], states)
    if name == "Free":
        return Free(tensors["support"], states)
    return Dense(states, symbols)
