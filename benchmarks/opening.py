"""How long a model takes to open, now and at an earlier commit, in turns.

    git worktree add ../before COMMIT
    python benchmarks/opening.py ../before

Each writes a model with random parameters to a temporary folder, in its own format, and opens it
many times (`earlier`). The files are in the system's cache, so it is the time of the processor that
is measured: hashes, checks, and reading the configuration, the words and the parameters.
"""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from pathlib import Path

import tyro

from earlier import Turns, commit_of
from record import save, surroundings

WORKER = """
import json, sys, tempfile, time
from pathlib import Path
import torch
from bighmm.data.tokenizers import Words
from bighmm.lm.hmmlm import HMMLM
from bighmm.lm.opening import open_model
from bighmm.model.params import find
from bighmm.model.support import Blocked

torch.set_num_threads(1)
size = json.loads(sys.argv[1])
tokenizer = Words.build(f"word{i}" for i in range(size["words"]))
support = Blocked.of(torch.arange(tokenizer.size) % size["blocks"], size["states"])
options = find("neural").options(width=size["width"])
with tempfile.TemporaryDirectory() as place:
    folder = Path(place) / "model"
    HMMLM("neural", options, support, tokenizer, seed=1).save_pretrained(folder)
    for line in sys.stdin:
        began = time.perf_counter()
        open_model(folder)
        print(time.perf_counter() - began, flush=True)
"""


@dataclass(frozen=True)
class Arguments:
    before: tyro.conf.Positional[Path]
    """A checkout of the earlier commit."""
    states: int = 32_768
    blocks: int = 128
    words: int = 10_000
    width: int = 256
    turns: int = 30
    """Openings by each."""
    out: str = "bench/opening.json"
    """File for the figures, under results/."""


def main(arguments: Arguments) -> None:
    settings = asdict(arguments)
    configuration = {k: v for k, v in settings.items() if k not in ("before", "out")}
    with Turns(arguments.before, WORKER, configuration, {}) as workers:
        times = workers.ask("open", arguments.turns)
    before, now = map(statistics.median, times)
    print(f"{before:.4f} s before, {now:.4f} s now ({now / before - 1:+.1%})")
    result = {
        "configuration": configuration,
        "commit_before": commit_of(arguments.before),
        "median_seconds": {"before": round(before, 5), "now": round(now, 5)},
        "fastest_seconds": {"before": round(min(times[0]), 5), "now": round(min(times[1]), 5)},
        "slower": round(now / before - 1, 4),
        **surroundings(),
    }
    print(f"saved to {save(arguments.out, result)}")


if __name__ == "__main__":
    main(tyro.cli(Arguments))
