"""Helpers of the benchmarks: timing, and result files with the commit and the device."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # papers/ is not installed

from papers.record import record_of, surroundings  # noqa: E402

__all__ = ["RESULTS", "ROOT", "best_seconds", "record_of", "save", "settings_of", "surroundings"]

RESULTS = ROOT / "results"


def best_seconds(work: Callable[[], Any], repeats: int) -> float:
    """The time of the fastest of `repeats` runs, in seconds."""
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def settings_of(arguments: Any) -> dict[str, Any]:
    """The fields of a dataclass of arguments, without paths of models and outputs."""
    return {name: value for name, value in asdict(arguments).items() if name not in ("hmm", "out")}


def save(path: str | Path, value: dict[str, Any] | list[dict[str, Any]]) -> Path:
    """Write a JSON file, relative to results/ unless the path is absolute, and return its path."""
    file = RESULTS / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    return file
