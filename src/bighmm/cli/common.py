"""What several commands share: parsing, opening a model, and the two kinds of output."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, TypeVar

import torch
import tyro
from rich.console import Console

from bighmm import baselines
from bighmm.baselines import Baseline
from bighmm.files import existing_folder, read_json
from bighmm.lm import HMMLM

T = TypeVar("T")

ModelPath = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
AsJson = Annotated[bool, tyro.conf.arg(name="json", help="One JSON object on standard output.")]


def parse(arguments: type[T], argv: list[str], command: str) -> T:
    """The arguments of a command; wrong ones end the program with status 2."""
    config = (tyro.conf.OmitArgPrefixes, tyro.conf.FlagCreatePairsOff)
    return tyro.cli(arguments, args=argv, prog=f"bighmm {command}", config=config)


def model_folder(path: Path) -> Path:
    """The folder of a model, given it or the run that trained it."""
    if not path.is_dir():
        raise ValueError(f"there is no model at {path}; give a model's folder or a run's")
    inside = existing_folder(path / "model")
    if inside is not None:
        return inside
    if (path / "recipe.json").exists():
        raise ValueError(f"the run {path} has not saved a model yet; resume it first")
    return path


def open_model(path: Path) -> HMMLM | Baseline:
    """The model of a folder, of whatever family it is."""
    folder = model_folder(path)
    config = read_json(folder / "config.json")
    family = config.get("family", "hmm") if isinstance(config, dict) else "hmm"
    if family == "hmm":
        return HMMLM.from_pretrained(folder)
    return baselines.find(family).model.load(folder)


def open_hmm(path: Path, what: str) -> HMMLM:
    """The model of a folder, which must be an HMM as `what` is asked of it."""
    lm = open_model(path)
    if not isinstance(lm, HMMLM):
        raise ValueError(f"{path} is not a hidden Markov model, so it has no {what}")
    return lm


def trained_on(run: Path) -> str:
    """The corpus that a run was trained on; ValueError if that is not known."""
    recipe = run / "recipe.json"
    if not recipe.exists():
        raise ValueError(f"{run} does not say what it was trained on; give --data")
    return read_json(recipe)["recipe"]["corpus"]["data"]


def find_device(name: str) -> torch.device:
    """cpu, cuda, or auto: a GPU if there is one. ValueError if it is not there."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ValueError(f"there is no device {name!r}; use cpu, cuda or auto")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(f"there is no GPU {name!r} that torch can use here; use --device cpu")
    return device


def print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, ensure_ascii=False))


def out() -> Console:
    """Standard output, for people."""
    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def err() -> Console:
    return Console(stderr=True, highlight=False, soft_wrap=not sys.stderr.isatty())


def some_text(text: str, what: str) -> str:
    if not text.strip():
        raise ValueError(f"{what} is empty; give at least one word")
    return text


def at_least_one(number: int, name: str) -> None:
    if number < 1:
        raise ValueError(f"{name} must be at least 1, not {number}")
