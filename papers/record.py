"""The record of a finished run: recipe, figures, validation curve, commit and device."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

import bighmm
from bighmm.base.json_files import read_json
from bighmm.train.recipe import PATHS


def record_of(run: Path) -> dict[str, Any]:
    """The record of the finished run in a folder.

    Paths are reduced to their last part, so that nothing of this machine is recorded.
    """
    result = read_json(run / "result.json")
    del result["run"], result["samples"]
    result["training_device"] = result.pop("device")
    for section, key in PATHS:
        settings = result["recipe"].get(section, {})
        if settings.get(key):
            settings[key] = Path(settings[key]).name
    return {**result, "valid_curve": _valid_curve(run), **surroundings()}


def surroundings() -> dict[str, Any]:
    """Commit, device, threads and versions that a figure was measured with."""
    return {
        "commit": commit(),
        "device": device_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def commit() -> str:
    """The commit of the imported package, marked -dirty if files were changed since.

    Where the package is a copy without its history, the environment variable BIGHMM_COMMIT has it.
    """
    if given := os.environ.get("BIGHMM_COMMIT"):
        return given
    here = Path(bighmm.__file__ or __file__).resolve()
    try:
        # An installed copy may lie inside the repository of something else.
        _git("ls-files", "--error-unmatch", here.name, folder=here.parent)
        describe = ("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
        return _git(*describe, folder=here.parent)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def device_name() -> str:
    """The name of the GPU, or the number of CPU cores and their architecture."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{os.cpu_count()} CPU cores, {platform.machine()}"


def _valid_curve(run: Path) -> list[list[float]]:
    """[step, validation perplexity] of every check; empty for a model without training steps."""
    path = run / "log.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    entries = map(json.loads, lines)
    return [[entry["step"], entry["perplexity"]] for entry in entries if entry["kind"] == "check"]


def _git(*arguments: str, folder: Path) -> str:
    found = subprocess.run(
        ["git", *arguments], cwd=folder, capture_output=True, text=True, check=True
    )
    return found.stdout.strip()
