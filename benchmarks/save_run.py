"""Save the record of a finished run under results/: recipe, figures and validation curve.

python benchmarks/save_run.py runs/ptb-4096 cpu/ptb-4096.json
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import tyro

from record import record_of, save


@dataclass(frozen=True)
class Arguments:
    run: tyro.conf.Positional[Path]
    """The folder of the run."""
    out: tyro.conf.Positional[str]
    """The file to write, under results/."""
    wall_seconds: float | None = None
    """Time of the whole command, if it was measured."""
    peak_gib: float | None = None
    """Peak memory, if it was measured."""


def main(arguments: Arguments) -> None:
    measured = {"wall_seconds": arguments.wall_seconds, "peak_gib": arguments.peak_gib}
    known = {name: value for name, value in measured.items() if value is not None}
    print(f"saved to {save(arguments.out, record_of(arguments.run) | known)}")


if __name__ == "__main__":
    main(tyro.cli(Arguments))
