"""What `bighmm train --data TEXT` gives without any other setting, on texts of several sizes.

python benchmarks/defaults.py web/train.txt.xz --kilobytes 3 300 3000 30000

Each text is the beginning of the file, up to the end of a line. A row of results/cpu/defaults.json
has the time of the whole command, the perplexities of the model, of a Kneser-Ney 5-gram and of a
unigram model, and what was chosen. Rows of sizes that are not asked for stay as they are.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from bighmm.base.json_files import read_json
from bighmm.base.reading import read_lines
from bighmm.train.logs import read_log
from record import RESULTS, save, surroundings

CHOSEN = (
    *("model.states", "model.blocks", "options.width", "options.start", "training.epochs"),
    *("training.state_dropout", "training.batch", "training.lr", "training.averaging"),
    "training.checks_per_epoch",
)


@dataclass(frozen=True)
class Arguments:
    text: tyro.conf.Positional[Path]
    """A text file, also as .xz or .gz."""
    kilobytes: tuple[int, ...] = (3, 300, 3000, 30000)
    """Sizes of the texts, in thousands of bytes."""
    out: str = "cpu/defaults.json"
    run: Path | None = None
    """A finished run of default settings, on a text of the one size that is given, to record."""
    processor_seconds: float = 0.0
    """What it has used."""
    busy: bool = False
    """Other work runs on the machine, so that only the processor time is recorded."""


def main(arguments: Arguments) -> None:
    path = RESULTS / arguments.out
    rows = {row["kilobytes"]: row for row in read_json(path)["rows"]} if path.exists() else {}
    for size in arguments.kilobytes:
        if arguments.run is not None:
            row = row_of(arguments.run, size, None, arguments.processor_seconds)
        else:
            row = measure(arguments.text, size, arguments.busy)
        rows[size] = row | surroundings()
        print(json.dumps(rows[size]), flush=True)
        save(arguments.out, {"rows": [rows[key] for key in sorted(rows)]})


def measure(text: Path, kilobytes: int, busy: bool) -> dict[str, Any]:
    """Train on the beginning of a text, in a process of its own with a cache of its own."""
    with tempfile.TemporaryDirectory() as folder:
        part, run = Path(folder) / "text.txt", Path(folder) / "run"
        total = itertools.accumulate(map(len, read_lines(text)), initial=0)
        short = itertools.takewhile(lambda done: done < 1000 * kilobytes, total)
        lines = sum(1 for _ in short)
        part.write_bytes(b"".join(itertools.islice(read_lines(text), lines)))
        command = [sys.executable, "-m", "bighmm", "train", "--data", str(part), "--out", str(run)]
        environment = {**os.environ, "BIGHMM_CACHE": str(Path(folder) / "cache")}
        began, before = time.monotonic(), _processor_seconds()
        subprocess.run([*command, "--json"], check=True, env=environment, capture_output=True)
        seconds, used = time.monotonic() - began, _processor_seconds() - before
        return row_of(run, kilobytes, None if busy else seconds, used)


def row_of(run: Path, kilobytes: int, seconds: float | None, used: float) -> dict[str, Any]:
    """The figures of a finished run, whose processes have used so many seconds."""
    result, recipe = read_json(run / "result.json"), read_json(run / "recipe.json")["recipe"]
    last = read_log(run).steps[-1]
    chosen = {name: recipe[(at := name.split("."))[0]][at[1]] for name in CHOSEN}
    figures = ("perplexity", "unigram_perplexity", "tokens")
    return {
        "kilobytes": kilobytes,
        "seconds": None if seconds is None else round(seconds, 1),
        "processor_seconds": round(used, 1),
        "epochs": last["epoch"],
        "tokens_read": last["tokens"],
        "valid": {name: result["valid"][name] for name in figures},
        "test": {name: result["test"][name] for name in figures},
        "kneser_ney": result["kneser_ney"],
        "chosen": chosen,
    }


def _processor_seconds() -> float:
    """What ended processes that this one started have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main(tyro.cli(Arguments))
