"""A fitted `SequenceHMM` as a folder.

config.json         its settings, which are those of the next fit; its support, transition family,
                    symbols and history, as they were fitted
model.safetensors   start, what the transitions are made of, emissions, the support's tensors
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bighmm.base.files import (
    check_hashes,
    existing_folder,
    is_earlier_save,
    read_current,
    replace_folder,
    sha256_of,
    write_sealed,
)
from bighmm.base.json_files import read_object
from bighmm.base.settings import Count, Positive, fill
from bighmm.base.tensor_files import check_numbers, read_tensors, write_tensors
from bighmm.hmm import HMM
from bighmm.model.checking import check_probabilities
from bighmm.model.emissions import EmissionTable
from bighmm.model.support import restore_support
from bighmm.model.transitions import restore_transitions
from bighmm.ops import memory
from bighmm.sequences.alphabet import Alphabet
from bighmm.sequences.old_names import RENAMED
from bighmm.sequences.settings import check_saved

CONFIG, WEIGHTS = "config.json", "model.safetensors"
FORMATS = tuple(f"bighmm.SequenceHMM {number}" for number in (1, 2, 3, 4))
TRANSITION, SUPPORT = "transition.", "support."  # what names of tensors begin with
TOLERANCE = 1e-3  # the largest logarithm of a sum of probabilities
MOST_MOVES = 1 << 24  # probabilities of moves that are looked at, all of 4,096 states


@dataclass(frozen=True)
class Saved:
    """What a folder holds of a fitted model."""

    settings: dict[str, Any]
    hmm: HMM
    alphabet: Alphabet
    history: list[float]
    converged: bool
    observed: int  # symbols that were fitted
    batches: int  # that `partial_fit` was given
    scores: list[float]  # log p that was reached from each beginning


def save(saved: Saved, folder: Path) -> None:
    """Write a fitted model; ValueError if the folder holds anything but an earlier one."""
    replace_folder(
        folder, lambda fresh: write(saved, fresh), keep_previous=False, may_replace=_is_written
    )


def write(saved: Saved, folder: Path) -> None:
    """Write the files of a fitted model into a folder that exists."""
    hmm, alphabet = saved.hmm, saved.alphabet
    settings = {name: _plain(value) for name, value in saved.settings.items()}
    settings["initial"] = None  # the fitted HMM is what is kept
    if not isinstance(settings["random_state"], int):
        settings["random_state"] = None
    check_saved(settings, "the settings of the model")
    support, of_support = hmm.support.describe()
    tensors = {"start": hmm.start, "emission": hmm.emission}
    tensors |= {f"{TRANSITION}{n}": t for n, t in enumerate(hmm.transitions.operands)}
    tensors |= {f"{SUPPORT}{name}": t for name, t in of_support.items()}
    config: dict[str, Any] = {
        "format": FORMATS[-1],
        "settings": settings,
        "support": support,
        "transitions": {"family": hmm.transitions.family, "settings": hmm.transitions.settings()},
        "n_symbols": alphabet.size,
        "symbols": None if alphabet.names is None else list(alphabet.names),
        "history": saved.history,
        "converged": saved.converged,
        "observed": saved.observed,
        "batches": saved.batches,
        "scores": saved.scores,
    }
    write_tensors(folder / WEIGHTS, tensors)
    files = {WEIGHTS: sha256_of(folder / WEIGHTS)}
    write_sealed(folder / CONFIG, _plain(config) | {"files": files})


def _plain(value: Any) -> Any:
    """The value as JSON has it."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray | Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def load(folder: Path) -> Saved:
    """What `save` wrote, in this format or an earlier one; ValueError if it is not whole."""
    if existing_folder(folder) is None:
        raise ValueError(f"there is no folder {folder}; give one that a SequenceHMM was saved to")
    return read_current(lambda: existing_folder(folder) or folder, _load)


def _load(folder: Path) -> Saved:
    found_config = read_object(folder / CONFIG, finite=False)
    if found_config.get("format") not in FORMATS:
        raise ValueError(f"{folder / CONFIG} is not the configuration of a SequenceHMM")
    try:
        check_hashes(folder, found_config.get("files"), [WEIGHTS])
        tensors = read_tensors(folder / WEIGHTS)
        if found_config["format"] == FORMATS[0]:
            found_config, tensors = _of_first_format(found_config, tensors)
        config = fill(Config, found_config, "its configuration")
        if _has_nan(found_config):
            raise ValueError("its configuration has NaN in it")
        check_saved(config.settings, "its settings")
        return Saved(
            config.settings,
            _hmm(config, tensors),
            _alphabet(config),
            config.history,
            config.converged,
            config.observed,
            config.batches,
            config.history[-1:] if config.scores is None else config.scores,
        )
    except (KeyError, IndexError, RuntimeError, TypeError, ValueError) as error:
        if str(folder) in str(error):
            raise
        # Families and supports from outside may raise errors of any class.
        reason = (str(error).splitlines() or [""])[0]
        raise ValueError(f"{folder} is damaged: {type(error).__name__}: {reason}") from None


@dataclass(frozen=True)
class Family:
    """Transitions as the configuration describes them."""

    family: str
    settings: dict[str, Any]


@dataclass(frozen=True)
class Config:
    """The content of config.json."""

    format: str
    settings: dict[str, Any]
    support: dict[str, Any]
    transitions: Family
    n_symbols: Positive
    history: list[float]
    files: dict[str, str]
    symbols: list[str] | None = None
    converged: bool = False
    observed: Count = 0
    batches: Count = 0
    scores: list[float] | None = None  # before format 4 they were not kept


def _alphabet(config: Config) -> Alphabet:
    """The symbols; ValueError if there are not as many as the model has."""
    if config.symbols is None:
        return Alphabet(config.n_symbols)
    if len({*config.symbols}) != config.n_symbols or len(config.symbols) != config.n_symbols:
        raise ValueError(f"its symbols are not {config.n_symbols} different strings")
    return Alphabet(config.n_symbols, tuple(config.symbols))


def _hmm(config: Config, tensors: dict[str, Tensor]) -> HMM:
    """The model of these tensors; ValueError if they do not fit the configuration."""
    operands = [t for name, t in sorted(tensors.items()) if name.startswith(TRANSITION)]
    of_support = {
        name.removeprefix(SUPPORT): t for name, t in tensors.items() if name.startswith(SUPPORT)
    }
    support = restore_support(config.support, of_support, config.n_symbols)
    if support.vocabulary_size != config.n_symbols:
        raise ValueError(f"its support knows {support.vocabulary_size} symbols")
    expected = {
        "start": (support.num_states,),
        "emission": (config.n_symbols, support.states_per_token),
    }
    for name, shape in expected.items():
        if name not in tensors or tensors[name].shape != shape:
            raise ValueError(f"its tensor {name} is missing, or not of shape {shape}")
    family = config.transitions
    transitions = restore_transitions(family.family, operands, family.settings)
    if transitions.num_states != support.num_states:
        raise ValueError(f"its transitions have {transitions.num_states} states")
    hmm = HMM(tensors["start"], transitions, EmissionTable(tensors["emission"]), support)
    _check_tensors(hmm)
    check_probabilities(hmm)
    return hmm


def _check_tensors(hmm: HMM) -> None:
    """Raises ValueError if tensors are not distributions, or what these are made of."""
    named = {"start": hmm.start, "emission": hmm.emission}
    named |= {f"{TRANSITION}{n}": t for n, t in enumerate(hmm.transitions.operands)}
    for name, tensor in named.items():
        if tensor.dtype not in (torch.float32, torch.float64):
            raise ValueError(f"its tensor {name} is of the type {tensor.dtype}")
        check_numbers(name, tensor, log_zeros=True)
    totals = {
        "tensor start is no distribution": hmm.start.logsumexp(0),
        "tensor emission is no distribution": _emission_totals(hmm),
        "transitions are no distributions": _move_totals(hmm),
    }
    for said, total in totals.items():
        if not bool((total.abs() < TOLERANCE).all()):
            raise ValueError(f"its {said}")


def _emission_totals(hmm: HMM) -> Tensor:
    """log Σ_x p(x | z) (Z,)."""
    every = torch.arange(hmm.support.vocabulary_size)
    states = hmm.support.states(every)  # (V, K)
    present = states >= 0
    total = hmm.emission.new_zeros(hmm.support.num_states)
    total.index_add_(0, states[present], hmm.emission[present].exp())
    return total.log()


def _move_totals(hmm: HMM) -> Tensor:
    """log Σ_j p(j | i) (R,) of all states i, or of as many as take no long time."""
    states = hmm.num_states
    rows = torch.arange(0, states, max(1, states**2 // MOST_MOVES))
    some = memory.pieces(len(rows), states, rows.device)
    return torch.cat([hmm.transitions.log_probs(rows[part]).logsumexp(1) for part in some])


def _has_nan(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return any(map(_has_nan, value))
    return isinstance(value, float) and math.isnan(value)


def _of_first_format(
    config: dict[str, Any], tensors: dict[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The same in the names of today. The first format did not name the family of transitions."""
    if not isinstance(config.get("settings"), dict) or "start" not in tensors:
        raise ValueError("its configuration has no settings, or its tensors no start")
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
