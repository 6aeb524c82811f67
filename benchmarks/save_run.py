"""Keep the figures of a finished run under results/: its recipe, its curve and what it reached.

python benchmarks/save_run.py runs/ptb-4096 cpu/ptb-4096.json
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import tyro

from record import save, surroundings


@dataclass(frozen=True)
class Arguments:
    run: tyro.conf.Positional[Path]
    """The run's folder."""
    out: tyro.conf.Positional[str]
    """The file to write, under results/."""
    wall_seconds: float | None = None
    """Of the whole command, where it was measured."""
    peak_gib: float | None = None
    """Largest memory, where it was measured."""


def main(arguments: Arguments) -> None:
    result = json.loads((arguments.run / "result.json").read_text(encoding="utf-8"))
    path = arguments.run / "log.jsonl"  # a model that is only counted has none
    log = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    checks = [entry for line in log if (entry := json.loads(line))["kind"] == "check"]
    del result["run"], result["samples"]
    result["training_device"] = result.pop("device")
    result["recipe"]["corpus"]["data"] = Path(result["recipe"]["corpus"]["data"]).name
    curve = [[check["step"], check["perplexity"]] for check in checks]
    measured = {"wall_seconds": arguments.wall_seconds, "peak_gib": arguments.peak_gib}
    known = {name: value for name, value in measured.items() if value is not None}
    saved = save(arguments.out, {**result, **known, "valid_curve": curve, **surroundings()})
    print(f"saved to {saved}")


if __name__ == "__main__":
    main(tyro.cli(Arguments))
