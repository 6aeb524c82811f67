"""What every measurement is saved with: the commit, the device, and the versions."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"


def best_seconds(work: Callable[[], Any], repeats: int) -> float:
    """The shortest of `repeats` runs, in seconds."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def surroundings() -> dict[str, Any]:
    """Where and with what a figure was measured."""
    return {
        "commit": commit(),
        "device": device_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def commit() -> str:
    """The commit of the code that was measured, with a mark if it was changed since."""
    if given := os.environ.get("BIGHMM_COMMIT"):  # where there is a copy without its history
        return given
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()


def device_name() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return f"{os.cpu_count()} CPU cores, {platform.machine()}"


def save(path: str, value: dict[str, Any] | list[dict[str, Any]]) -> Path:
    file = RESULTS / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    return file
