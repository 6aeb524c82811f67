"""A fitted `SequenceHMM` as a folder.

config.json         its settings, which are those of the next fit; its support, transition family,
                    number of symbols and history, as they were fitted
model.safetensors   start, what the transitions are made of, emissions, the support's tensors
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from bighmm.base.files import (
    check_hashes,
    existing_folder,
    hashes,
    is_earlier_save,
    replace_folder,
    write_json,
)
from bighmm.base.json_files import read_json
from bighmm.base.tensor_files import write_tensors
from bighmm.hmm import HMM
from bighmm.model.emissions import EmissionTable
from bighmm.model.support import restore_support
from bighmm.model.transitions import restore_transitions

CONFIG, WEIGHTS = "config.json", "model.safetensors"
FORMATS = ("bighmm.SequenceHMM 1", "bighmm.SequenceHMM 2")
TRANSITION, SUPPORT = "transition.", "support."  # what names of tensors begin with
RENAMED = {"parameters": "parameterisation", "n_alive": "n_states_per_symbol"}


class Saved:
    """What a folder holds of a fitted model."""

    def __init__(
        self, settings: dict[str, Any], hmm: HMM, n_symbols: int, history: list[float]
    ) -> None:
        self.settings, self.hmm, self.n_symbols, self.history = settings, hmm, n_symbols, history


def save(saved: Saved, folder: Path) -> None:
    """Write a fitted model; ValueError if the folder holds anything but an earlier one."""
    hmm = saved.hmm
    settings = {
        name: value.item() if isinstance(value, np.generic) else value
        for name, value in saved.settings.items()
    }
    settings["initial"] = None  # the fitted HMM is what is kept
    if not isinstance(settings["random_state"], int):
        settings["random_state"] = None
    support, of_support = hmm.support.describe()
    tensors = {"start": hmm.start, "emission": hmm.emission}
    tensors |= {f"{TRANSITION}{n}": t for n, t in enumerate(hmm.transitions.operands)}
    tensors |= {f"{SUPPORT}{name}": t for name, t in of_support.items()}
    config = {
        "format": FORMATS[-1],
        "settings": settings,
        "support": support,
        "transitions": {"family": hmm.transitions.family, "settings": hmm.transitions.settings()},
        "n_symbols": saved.n_symbols,
        "history": saved.history,
    }

    def fill(fresh: Path) -> None:
        write_tensors(fresh / WEIGHTS, tensors)
        write_json(fresh / CONFIG, config | {"files": hashes(fresh)})

    replace_folder(folder, fill, keep_previous=False, may_replace=_is_written)


def load(folder: Path) -> Saved:
    """What `save` wrote, in this format or the first; ValueError if it is not whole."""
    found = existing_folder(folder)
    if found is None:
        raise ValueError(f"there is no folder {folder}; give one that a SequenceHMM was saved to")
    folder = found
    config: Any = read_json(folder / CONFIG)
    if not isinstance(config, dict) or config.get("format") not in FORMATS:
        raise ValueError(f"{folder / CONFIG} is not the configuration of a SequenceHMM")
    try:
        check_hashes(folder, config["files"])
        tensors = load_file(folder / WEIGHTS)
        if config["format"] == FORMATS[0]:
            config, tensors = _of_first_format(config, tensors)
        operands = [t for name, t in sorted(tensors.items()) if name.startswith(TRANSITION)]
        of_support = {
            name.removeprefix(SUPPORT): t for name, t in tensors.items() if name.startswith(SUPPORT)
        }
        family, settings = config["transitions"]["family"], config["transitions"]["settings"]
        hmm = HMM(
            tensors["start"],
            restore_transitions(family, operands, settings),
            EmissionTable(tensors["emission"]),
            restore_support(config["support"], of_support, config["n_symbols"]),
        )
        return Saved(config["settings"], hmm, config["n_symbols"], config["history"])
    except (KeyError, TypeError, OSError, SafetensorError) as error:
        raise ValueError(f"{folder} is damaged: {type(error).__name__}: {error}") from None


def _of_first_format(
    config: dict[str, Any], tensors: dict[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The same in the names of today. The first format did not name the family of transitions."""
    kinds = {"Dense": ("dense", ""), "Blocked": ("blocked", "block_of"), "Free": ("free", "states")}
    kind, name = kinds[config["support"]]
    if "support" in tensors:
        tensors[SUPPORT + name] = tensors.pop("support")
    settings = {RENAMED.get(key, key): value for key, value in config["settings"].items()}
    if settings["support"] == "free":
        settings["support"] = "per-symbol"
    family = "flat" if f"{TRANSITION}1" in tensors else "table"
    return {
        **config,
        "settings": settings,
        "support": {"kind": kind, "states": len(tensors["start"])},
        "transitions": {"family": family, "settings": {}},
    }, tensors


def _is_written(folder: Path) -> bool:
    """Whether a folder is one that `save` wrote, and has no other files."""
    return is_earlier_save(folder, CONFIG, [WEIGHTS], lambda c: c.get("format") in FORMATS)
