"""One process alone, now and at an earlier commit: seconds of a training step, in turns.

    git worktree add ../before COMMIT
    OMP_NUM_THREADS=1 python benchmarks/one_process.py ../before

Both take turns, some steps each (`earlier`). The step is that of the quick start: 4,096 states in
128 blocks, two-level transitions, batches of 16 × 32 words of Python's documentation; and the same
with flat transitions.
"""

from __future__ import annotations

import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

import tyro

from earlier import Turns, commit_of
from record import save, surroundings

WORKER = """
import json, sys, time
from bighmm.data.corpus import prepare
from bighmm.train.phases import make_runner
from bighmm.train.recipe import from_dict
from bighmm.train.schedule import make_schedule
from bighmm.train.setup import new_model, training_batches

steps, runners, place = {}, {}, {}
corpus = prepare("pydoc")
for name, asked in json.loads(sys.argv[1]).items():
    recipe = from_dict(asked, "the benchmark")
    lm = new_model(recipe, corpus).to("cpu", "float32")
    batches = training_batches(corpus, recipe.training)
    runners[name] = make_runner(recipe, corpus, lm, batches, make_schedule(recipe.training, 99999))
    place[name] = 0
for line in sys.stdin:
    name, count = json.loads(line)
    began = time.perf_counter()
    for _ in range(count):
        runners[name].run(place[name], 1)
        place[name] += 1
    print((time.perf_counter() - began) / count, flush=True)
"""
TRAINING = {"batch": 16, "window": 32, "device": "cpu"}
CASES = {
    name: {
        "model": {"states": 4096, "blocks": 128},
        "options": {"width": 128, "start": "direct", "transitions": name},
        "training": TRAINING,
    }
    for name in ("two-level", "flat")
}


@dataclass(frozen=True)
class Arguments:
    before: tyro.conf.Positional[Path]
    """A checkout of the earlier commit."""
    turns: int = 24
    steps: int = 10
    """Number of steps in a turn."""
    out: str = "bench/one_process.json"
    """File for the figures, under results/."""


def main(arguments: Arguments) -> None:
    rows = []
    with (
        tempfile.TemporaryDirectory() as cache,
        Turns(arguments.before, WORKER, CASES, {"BIGHMM_CACHE": cache}) as workers,
    ):
        for case in CASES:
            times = workers.ask([case, arguments.steps], arguments.turns)
            before, now = map(statistics.median, times)
            ratios = [b / a for a, b in zip(*times, strict=True)]
            rows.append(
                {
                    "operation": "one process",
                    "transitions": case,
                    "seconds_before": before,
                    "seconds_now": now,
                    "ratio": now / before,
                    "median_of_ratios": statistics.median(ratios),
                    "commit_before": commit_of(arguments.before),
                    "turns": arguments.turns,
                    "steps": arguments.steps,
                    **surroundings(),
                }
            )
            print(f"{case}: {1e3 * before:.1f} ms before, {1e3 * now:.1f} now ({now / before:.3f})")
    print(f"saved to {save(arguments.out, rows)}")


if __name__ == "__main__":
    main(tyro.cli(Arguments))
