"""Models of any family: finding and opening one, its device, and texts that it writes."""

from __future__ import annotations

from pathlib import Path

import torch

from bighmm.base import files
from bighmm.base.files import read_json
from bighmm.base.settings import check_seed
from bighmm.lm import baselines
from bighmm.lm.baselines import Baseline
from bighmm.lm.hmmlm import HMMLM

RECIPE = "recipe.json"  # what a run has from its beginning on


def find_model(path: Path) -> Path:
    """The folder of a model, given it or the run that trained it."""
    if not path.is_dir():
        raise ValueError(f"there is no model at {path}; give a model's folder or a run's")
    found = files.model_folder(path)
    if found == path and (path / RECIPE).exists():
        raise ValueError(f"the run {path} has not saved a model yet; resume it first")
    return found


def open_model(path: Path) -> HMMLM | Baseline:
    """The model of a folder, of whatever family it is."""
    folder = find_model(path)
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


def generator_for(device: torch.device, seed: int | None) -> torch.Generator:
    """Random numbers from a seed, or different ones every time."""
    generator = torch.Generator(device)
    if seed is None:
        generator.seed()
        return generator
    check_seed(seed)
    return generator.manual_seed(seed)


def sample_texts(
    lm: HMMLM | Baseline,
    n: int,
    prefix: str = "",
    seed: int | None = None,
    length: int | None = None,
    temperature: float = 1.0,
) -> list[str]:
    """Texts up to their end mark, or of `length` words; the same for the same seed."""
    before = lm.encode(prefix)
    drawn = lm.predictor().sample(n, length, before, generator_for(lm.device, seed), temperature)
    texts = []
    for row in drawn.tolist():
        if length is None and lm.tokenizer.end in row:
            row = row[: row.index(lm.tokenizer.end)]
        texts.append(lm.decode([*before, *row]).rstrip("\n"))
    return texts
