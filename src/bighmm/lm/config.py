"""The files of an HMMLM beside its weights: configuration and blocks, read and checked."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from bighmm.base.json_files import read_record, read_sealed
from bighmm.base.settings import Count, fill, shown
from bighmm.base.tensor_files import TensorFile
from bighmm.lm.hub import BLOCKS, CONFIG, WEIGHTS
from bighmm.lm.options import Convention
from bighmm.model import checking, params
from bighmm.model.calibration import UNCALIBRATED, Calibration
from bighmm.model.model import Model
from bighmm.model.options import LATER_OPTIONS, OPTIONS, with_new_names
from bighmm.model.support import Support
from bighmm.model.support import restore_support as support_of

FORMAT = 1
SUPPORT = "support."  # what the names of the support's tensors begin with


@dataclass(frozen=True)
class Config:
    """The content of config.json."""

    format: int
    kind: str  # the parameterisation
    options: Any  # a dictionary, and then an instance of the parameterisation's dataclass
    support: dict[str, Any]
    vocabulary: str
    files: dict[str, str]
    family: Literal["hmm"] = "hmm"
    convention: Convention = "reset"
    calibration: Calibration = UNCALIBRATED


def read_config(folder: Path) -> Config:
    """The configuration of a model, with its options; ValueError if it is not one."""
    path = folder / CONFIG
    found, whole = read_sealed(path)
    if found.get("format") != FORMAT:
        raise ValueError(f"{path} is not the configuration of a bighmm model")
    if found.get("family", "hmm") != "hmm":
        raise ValueError(f"{folder} holds a model of family {shown(found['family'])}, not an HMM")
    if not isinstance(found.get("files"), dict):
        raise ValueError(f"{path} is damaged: it does not list the model's files")
    config = fill(Config, found, f"{path} is damaged: it")
    if WEIGHTS not in config.files:
        raise ValueError(f"{path} is damaged: it does not list {WEIGHTS} among the model's files")
    try:
        kind = params.find(config.kind)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    given = with_new_names(config.options)
    options: Any = fill(kind.options, given, f"{path} is damaged: options")
    missing = {field.name for field in dataclasses.fields(kind.options)} - {*given, *LATER_OPTIONS}
    if missing and not whole and config.kind in OPTIONS:
        raise ValueError(f"{path} is damaged: options has no field {min(missing)!r}")
    return dataclasses.replace(config, options=options)


def check_probabilities(model: Model, folder: Path) -> None:
    """Raises ValueError if what was computed from parameters are no probabilities."""
    try:
        checking.check_probabilities(model)
    except ValueError:
        raise ValueError(
            f"{folder / WEIGHTS} is damaged: its parameters are so large that they give no "
            "probabilities"
        ) from None


def restore_support(
    config: Config, tensors: TensorFile, folder: Path, vocabulary_size: int
) -> Support:
    """The support that config.json describes, with those of the tensors that are its own."""
    own = [name for name in tensors if name.startswith(SUPPORT)]
    found = {name.removeprefix(SUPPORT): tensors[name] for name in own}
    if BLOCKS in config.files:
        found["block_of"] = torch.tensor(read_record(BlocksFile, folder / BLOCKS).block_of)
    return support_of(config.support, found, vocabulary_size)


@dataclass(frozen=True)
class BlocksFile:
    """The content of blocks.json."""

    block_of: list[Count]
