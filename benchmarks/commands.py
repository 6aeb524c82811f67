"""Time of `bighmm COMMAND --help`, and of a question at the prompt of `bighmm ask`.

    python benchmarks/commands.py runs/pydoc-4096

Help is timed as a user waits for it: a process of its own, from start to end. A question within
`ask` is timed from the line to the printed answer, parsing included, after one that is not counted.
The times are the shortest and the median of some repeats, and the median of the processor's time,
which depends less on what else the machine does; `load` is its load average. The limits are those
that the project set itself: half a second for help, 50 ms for `next`.
"""

from __future__ import annotations

import contextlib
import io
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the command line does, before torch loads
os.environ.setdefault("GOMP_SPINCOUNT", "500")

import tyro

from bighmm.cli.ask import AskArguments, Asking
from bighmm.cli.common import models_stay_open
from bighmm.cli.main import COMMANDS
from record import save, surroundings

QUESTIONS = (
    "next the name of the",
    "next the name of the --must file --length 10",
    "score the name of the file",
    "tag the name of the file",
    "fill the ___ of the file --best",
    "sample --seed 1",
)


@dataclass(frozen=True)
class Arguments:
    run: tyro.conf.Positional[Path] = Path("runs/pydoc-4096")
    repeats: int = 9
    out: str = "bench/commands.json"
    """File for the figures, under results/."""


def main(arguments: Arguments) -> None:
    helped = {name: timed(lambda: show_help(name), 1) for name in COMMANDS}  # noqa: B023
    asked = {}
    with models_stay_open():
        asking = Asking(
            AskArguments(arguments.run), AskArguments(arguments.run).compute.open(arguments.run)
        )
        for line in QUESTIONS:
            asked[line] = timed(lambda: answer(asking, line), arguments.repeats)  # noqa: B023
    rows = {"help_seconds": helped, "ask_seconds": asked}
    for kind, found in rows.items():
        for name, row in found.items():
            print(f"{kind}\t{name}\t{row['shortest']:.3f}\t{row['processor']:.3f}")
    save(
        arguments.out,
        {
            **surroundings(),
            "settings": {"run": str(arguments.run), "repeats": arguments.repeats},
            "load": os.getloadavg()[0],
            "limits": {"help_seconds": 0.5, "ask_next_seconds": 0.05},
            **rows,
        },
    )


def show_help(command: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "bighmm", command, "--help"], check=True, stdout=subprocess.DEVNULL
    )


def answer(asking: Asking, line: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        assert asking.answer(line), line


def timed(call: Callable[[], Any], repeats: int) -> dict[str, float]:
    """Times of a call in seconds, after one that is not counted."""
    call()
    seconds, processor = [], []
    for _ in range(repeats):
        begin, used = time.perf_counter(), _processor()
        call()
        seconds.append(time.perf_counter() - begin)
        processor.append(_processor() - used)
    return {
        "shortest": min(seconds),
        "median": statistics.median(seconds),
        "processor": statistics.median(processor),
    }


def _processor() -> float:
    """The processor's time of this process and of those that it has waited for."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


if __name__ == "__main__":
    main(tyro.cli(Arguments))
