"""The log of a run, read back: its steps and its validations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bighmm.base.json_files import parse_json
from bighmm.base.reading import read_lines
from bighmm.base.settings import LARGEST, is_number

LOG = "log.jsonl"
STEP_FIELDS = ("step", "epoch", "loss", "lr", "tokens", "seconds")
CHECK_FIELDS = ("step", "perplexity")
LONGEST = 1 << 16  # bytes of a line; those that are written have some hundred
FIRST_EPOCH = 1e-12  # a step is a larger part of an epoch than this


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
    """The log of a run; empty without one. Lines that `entry_of` does not accept are left out."""
    log = RunLog([], [])
    if not (run / LOG).exists():
        return log
    for line in read_lines(run / LOG):
        entry = entry_of(line)
        if entry is not None:
            (log.steps if entry["kind"] == "step" else log.checks).append(entry)
    return log


def entry_of(line: bytes) -> dict[str, Any] | None:
    """The step or the validation of a line of a log.

    None for a line that is damaged or not whole, as a killed process leaves one, or that has a
    number which is not possible there, such as an infinite perplexity.
    """
    if len(line) > LONGEST:
        return None
    try:
        found = parse_json(line, LOG)
    except ValueError:
        return None
    kind = found.get("kind") if isinstance(found, dict) else None
    if kind == "step" and all(is_number(found.get(field)) for field in STEP_FIELDS):
        possible = found["epoch"] >= FIRST_EPOCH and abs(found["loss"]) <= LARGEST
    elif kind == "check" and all(is_number(found.get(field)) for field in CHECK_FIELDS):
        possible = found["perplexity"] > 0
    else:
        possible = False
    return found if possible else None
