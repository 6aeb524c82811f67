"""The log of a run, read back: its steps and its validations."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bighmm.base.reading import read_lines

LOG = "log.jsonl"


@dataclass(frozen=True)
class RunLog:
    steps: list[dict[str, Any]]
    checks: list[dict[str, Any]]

    def curve(self) -> list[tuple[float, float]]:
        """The epoch and the perplexity of each validation."""
        epochs = {entry["step"]: entry["epoch"] for entry in self.steps}
        return [(epochs.get(c["step"], 0.0), c["perplexity"]) for c in self.checks]

    def epochs_at(self, step: int) -> float:
        """The epochs that a run had had at a step; 0 where the log does not say."""
        return next((e["epoch"] for e in reversed(self.steps) if e["step"] == step), 0.0)


def read_log(run: Path) -> RunLog:
    """The log of a run; empty without one. A line that is not whole ends it."""
    log = RunLog([], [])
    if not (run / LOG).exists():
        return log
    for line in read_lines(run / LOG):
        try:
            entry = json.loads(line)
        except ValueError:  # the process was killed while it wrote
            break
        wanted = {"step": ("step", "epoch", "loss"), "check": ("step", "perplexity")}
        kind = entry.get("kind") if isinstance(entry, dict) else None
        if kind not in wanted or not all(
            isinstance(entry.get(key), int | float) for key in wanted[kind]
        ):
            break
        (log.steps if kind == "step" else log.checks).append(entry)
    return log
