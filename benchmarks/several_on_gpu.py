"""Two processes on a GPU against one: losses of the same training steps.

    python benchmarks/several_on_gpu.py --data PTB_FOLDER

Both processes use the same GPU and gloo sends, so this shows that the steps are right on CUDA
tensors, not that they are fast. Steps are in float32, since products of other shapes are rounded
differently; `--device cpu` tries the program without a GPU. The figures go to
results/bench/several-gpu.json.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import tyro

from launching import start_together
from record import save, surroundings

HMM = ("--states", "2048", "--blocks", "64", "--width", "64", "--state-dropout", "0.25")
CASES = {
    "two-level": (*HMM, "--rows", "touched"),
    "two-level, sharded": (*HMM, "--shard-optimizer"),
    "flat": (*HMM, "--transitions", "flat"),
    "dense": ("--support", "dense", "--states", "128", "--width", "64"),
    "lstm": ("--family", "lstm"),
    "awd-lstm": ("--family", "awd-lstm", "--width", "128", "--embedding", "64"),
}
TRAINING = ("--batch", "16", "--window", "32", "--lr", "0.002", "--matmul-dtype", "float32")


@dataclass(frozen=True)
class Arguments:
    data: str
    """The Penn Treebank's folder."""
    device: str = "cuda"
    steps: int = 64
    out: str = "bench/several-gpu.json"
    """File for the figures, under results/."""


def main(arguments: Arguments) -> None:
    rows = []
    with tempfile.TemporaryDirectory() as home:
        folders = {case: [Path(home) / f"{case}-{n}" for n in (1, 2)] for case in CASES}
        epochs, started = arguments.steps / steps_per_epoch(arguments.data), []
        for case, runs in folders.items():
            for count, run in enumerate(runs, 1):
                command = command_of(run, CASES[case], epochs, arguments)
                started += start_together(command, count)
        if any([process.wait() for process in started]):  # of all, so that none goes on
            sys.exit("a process has failed")
        for case, runs in folders.items():
            one, two = (losses(run) for run in runs)
            if not (len(one) == len(two) == arguments.steps):
                sys.exit(f"{case}: {len(one)} and {len(two)} steps instead of {arguments.steps}")
            off = max(abs(b - a) / abs(a) for a, b in zip(one, two, strict=True))
            ends = [read(run / "result.json")["valid"]["perplexity"] for run in runs]
            rows.append(
                {
                    "case": case,
                    "steps": arguments.steps,
                    "largest_relative_difference_of_losses": off,
                    "first_loss": one[0],
                    "last_loss": one[-1],
                    "valid": ends,
                }
            )
            print(f"{case}: losses differ by {off:.1e} at most; valid {ends}", flush=True)
    kept = {"operation": "two processes over gloo", "on": arguments.device, "rows": rows}
    print(f"saved to {save(arguments.out, {**kept, **surroundings()})}")


def command_of(run: Path, flags: tuple[str, ...], epochs: float, arguments: Arguments) -> list[str]:
    """`bighmm train` in the folder of a run."""
    command = [sys.executable, "-m", "bighmm", "train", "--data", arguments.data]
    command += ["--out", str(run), "--device", arguments.device, "--epochs", f"{epochs:.6f}"]
    return [*command, *TRAINING, *flags, "--checks-per-epoch", "1"]


def steps_per_epoch(data: str) -> int:
    from bighmm.data.corpus import prepare
    from bighmm.train.recipe import TrainingSettings
    from bighmm.train.setup import training_batches

    return training_batches(prepare(data), TrainingSettings(batch=16, window=32)).steps_per_epoch


def losses(run: Path) -> list[float]:
    lines = map(json.loads, (run / "log.jsonl").read_text().splitlines())
    return [line["loss"] for line in lines if line["kind"] == "step"]


def read(path: Path) -> dict:
    return json.loads(path.read_text())


if __name__ == "__main__":
    main(tyro.cli(Arguments))
