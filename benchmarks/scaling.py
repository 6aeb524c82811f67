"""Several processes: seconds and bytes of a training step, and a cost model of both.

    python benchmarks/scaling.py                      # 1, 2 and 4 processes of one thread, on a CPU
    python benchmarks/scaling.py --device cuda --processes 1 2 --out bench/scaling-gpu.json

The steps are those of `bighmm train` under `torchrun`. For each number of processes there is also
measured, on its own, what the model (`scaling_model.py`) is made of: the work of one process of so
many while the others rest and nothing is sent, how much two processes on cores of their own slow
each other down, and sums of some sizes over two processes. From these it predicts the steps, and
from steps on one GPU (`bench/two_level_step.json`) and stated assumptions those of 8 and 64 GPUs.
The result keeps `measured` and `predicted` apart.

With more processes than GPUs they share one, and gloo sends: that shows that it is right, not fast.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tyro

from launching import start_together
from record import RESULTS, save, surroundings
from scaling_model import assumptions, machine_of, predictions

BATCH, WINDOW = 16, 32
CASES: dict[str, dict[str, Any]] = {
    "two-level": {"model": {"states": 4096, "blocks": 128}, "options": {"width": 128}},
    "flat": {
        "model": {"states": 4096, "blocks": 128},
        "options": {"width": 128, "transitions": "flat"},
    },
    "lstm": {"model": {"family": "lstm"}, "options": {"width": 256}},
}
SIZES = (1 << 12, 1 << 18, 1 << 22, 1 << 24)  # bytes of the sums that are timed on their own


@dataclass(frozen=True)
class Arguments:
    processes: tuple[int, ...] = (1, 2, 4)
    device: str = "cpu"
    steps: int = 12
    """Number of steps that are timed, of each kind."""
    out: str = "bench/scaling.json"
    """File for the figures, under results/."""
    work: str | None = None
    """Of a process that this program starts: the folder of the text and of the figures."""


def main(arguments: Arguments) -> None:
    if arguments.work is not None:
        measure_here(Path(arguments.work), arguments)
        return
    found = {}
    with tempfile.TemporaryDirectory() as home:
        write_text(Path(home) / "text.txt")
        for count in arguments.processes:
            found[count] = start_processes(count, Path(home), arguments)
    result = report(found, arguments)
    print(f"saved to {save(arguments.out, result)}")


def report(found: dict[int, dict[str, Any]], arguments: Arguments) -> dict[str, Any]:
    """What was measured beside what the model says of it, and what it says of GPUs."""
    cores = os.cpu_count() or 1
    if arguments.device != "cpu":
        import torch

        cores = torch.cuda.device_count()
    two = found[min(count for count in found if count > 1)]
    machine = machine_of(cores, two["slowing"], [tuple(s) for s in two["sums"]])
    rows = []
    for count, figures in found.items():
        for case, row in figures["steps"].items():
            said = machine.step_seconds(row["compute_seconds"], count, row["calls"], row["bytes"])
            error = said / row["seconds"] - 1
            rows.append({"case": case, "processes": count, **row, "model": said, "error": error})
            print(
                f"{case}, {count}: {1e3 * row['seconds']:.1f} ms, {row['bytes'] / 1e6:.2f} MB in "
                f"{row['calls']:.0f} sums; the model says {1e3 * said:.1f} ms ({error:+.0%})"
            )
    on_gpu = [
        row
        for row in json.loads((RESULTS / "bench/two_level_step.json").read_text())
        if row["operation"] == "two_level_step"
    ]
    return {
        "operation": "several processes",
        "device": arguments.device,
        "batch": [BATCH, WINDOW],
        "measured": {
            "steps": [
                {k: v for k, v in row.items() if k not in ("model", "error")} for row in rows
            ],
            "sums": {count: figures["sums"] for count, figures in found.items()},
            "machine": asdict(machine),
            "largest_relative_error_of_the_model": max(abs(row["error"]) for row in rows),
        },
        "predicted": {
            "steps_here": [
                {k: row[k] for k in ("case", "processes", "model", "error")} for row in rows
            ],
            "assumptions": assumptions(on_gpu),
            "gpus": predictions(on_gpu),
        },
        **surroundings(),
    }


def write_text(path: Path) -> None:
    """A text of 4,000 words, frequent ones far more often than rare ones."""
    drawn = random.Random(1)
    words = [f"w{i}" for i in range(4000)]
    weights = [1 / (i + 5) for i in range(len(words))]
    lines = (" ".join(drawn.choices(words, weights, k=20)) for _ in range(6000))
    path.write_text("\n".join(lines))


def start_processes(count: int, home: Path, arguments: Arguments) -> dict[str, Any]:
    """The figures that so many processes have measured together."""
    command = [sys.executable, __file__, "--work", str(home), "--device", arguments.device]
    command += ["--steps", str(arguments.steps)]
    cache = str(home / "cache")
    started = start_together(command, count, OMP_NUM_THREADS="1", BIGHMM_CACHE=cache)
    if any(process.wait() for process in started):
        raise SystemExit("a process has failed")
    return json.loads((home / f"{count}.json").read_text())


def measure_here(home: Path, arguments: Arguments) -> None:
    """One of the processes; the first one writes what it has measured."""
    import torch

    from bighmm.base import processes
    from bighmm.lm.opening import find_device

    torch.set_num_threads(1)
    device = find_device(processes.local_device(arguments.device))
    with processes.start(device) as here:
        steps = {}
        for case, asked in CASES.items():
            real = make_steps(home, asked, device, nullcontext())
            seconds, calls, size = time_steps(real, arguments.steps, here)
            work = make_steps(home, asked, device, pretending(here))
            compute = time_alone(work, arguments.steps, here, range(1))
            together = time_alone(work, arguments.steps, here, range(min(2, here.count)))
            steps[case] = {
                "seconds": seconds,
                "bytes": size,
                "calls": calls,
                "compute_seconds": compute,
                "compute_seconds_of_two": together,
            }
        sums = [] if here.alone else [(size, time_sum(size, device, here)) for size in SIZES]
        if here.first:
            work = steps["two-level"]
            slowing = max(1.0, work["compute_seconds_of_two"] / work["compute_seconds"])
            figures = {"steps": steps, "sums": sums, "slowing": slowing}
            (home / f"{here.count}.json").write_text(json.dumps(figures))


def make_steps(
    home: Path, asked: dict[str, Any], device: Any, within: Any
) -> Callable[[int], None]:
    """A function that does the training step with this number, as `bighmm train` does.

    within: the context in which it is made; all processes make the model together.
    """
    import torch

    from bighmm.data.corpus import prepare
    from bighmm.train.phases import make_runner
    from bighmm.train.recipe import from_dict
    from bighmm.train.schedule import make_schedule
    from bighmm.train.setup import new_model, training_batches

    training = {"batch": BATCH, "window": WINDOW, "device": str(device)}
    recipe = from_dict({**asked, "training": training}, "the benchmark")
    corpus = prepare(str(home / "text.txt"))
    lm = new_model(recipe, corpus).to(device, "float32")
    batches, schedule = (
        training_batches(corpus, recipe.training),
        make_schedule(recipe.training, 99),
    )
    with within:
        runner = make_runner(recipe, corpus, lm, batches, schedule)

    def step(number: int) -> None:
        runner.run(number, 1)
        if device.type == "cuda":
            torch.cuda.synchronize()

    return step


def time_steps(step: Callable[[int], None], steps: int, here: Any) -> tuple[float, float, float]:
    """Median seconds, sums and bytes of a step of all processes."""
    for number in range(3):
        step(number)
    here.from_each(None)
    calls, size, times = here.traffic.calls, here.traffic.bytes, []
    for number in range(steps):
        began = time.perf_counter()
        step(3 + number)
        times.append(time.perf_counter() - began)
    sent = (here.traffic.calls - calls) / steps, (here.traffic.bytes - size) / steps
    return statistics.median(times), *sent


def time_alone(step: Callable[[int], None], steps: int, here: Any, who: range) -> float:
    """Median seconds of a step of the first process, while only those of `who` do any."""
    times = [0.0]
    here.from_each(None)
    if here.number in who:
        with pretending(here):
            times = []
            for number in range(steps):
                began = time.perf_counter()
                step(number)
                times.append(time.perf_counter() - began)
    here.from_each(None)
    return statistics.median(times)


def time_sum(size: int, device: Any, here: Any) -> float:
    """Median seconds of a sum of so many bytes."""
    import torch

    numbers, times = torch.zeros(size // 4, device=device), []
    for _ in range(15):
        here.from_each(None)
        began = time.perf_counter()
        here.sum_([numbers])
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - began)
    return statistics.median(times[3:])


@contextmanager
def pretending(here: Any) -> Any:
    """Context in which this process does its part of the work, and nothing is sent."""
    from bighmm.base import processes

    class Pretended(processes.Processes):
        capturable = here.capturable

        def begin_sum(self, tensors: Any) -> Callable[[], None]:
            return lambda: None

        def from_first(self, value: Any) -> Any:
            return value

        def from_each(self, value: Any) -> list[Any]:
            return [value] * self.count

        def copy_first_(self, tensors: Any) -> None: ...

    before = processes._current
    processes._current = Pretended(here.number, here.count)
    try:
        yield
    finally:
        processes._current = before


if __name__ == "__main__":
    main(tyro.cli(Arguments))
