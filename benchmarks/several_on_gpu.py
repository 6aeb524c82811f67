"""Two processes on a GPU against one: losses of the same training steps.

    python benchmarks/several_on_gpu.py --data PTB_FOLDER

Both processes use the same GPU and gloo sends, so this shows that the steps are right on CUDA
tensors, not that they are fast. Steps are in float32, since products of other shapes are rounded
differently; `--device cpu` tries the program without a GPU. The figures go to
results/bench/several-gpu.json.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import tyro

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
        started = []
        for case, runs in folders.items():
            for count, run in enumerate(runs, 1):
                started += begin(run, count, CASES[case], arguments)
        for process in started:
            process.wait()
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
    kept = {"operation": "two processes over gloo", "device": arguments.device, "rows": rows}
    print(f"saved to {save(arguments.out, {**surroundings(), **kept})}")


def begin(
    run: Path, count: int, flags: tuple[str, ...], arguments: Arguments
) -> list[subprocess.Popen[bytes]]:
    """Start the processes of a run of so many, each of which is a process of `bighmm train`."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    epochs = arguments.steps / steps_per_epoch(arguments.data)
    command = [sys.executable, "-m", "bighmm", "train", "--data", arguments.data]
    command += ["--out", str(run), "--device", arguments.device, "--epochs", f"{epochs:.6f}"]
    command += [*TRAINING, *flags, "--checks-per-epoch", "1"]
    known = {**os.environ, "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    known |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        subprocess.Popen(command, env={**known, "RANK": str(n), "LOCAL_RANK": str(n)})
        for n in range(count)
    ]


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
