"""How long a model takes to open, with the checks of its files and without them.

    python benchmarks/opening.py
    python benchmarks/opening.py --states 4096 --repeats 5 --out /tmp/opening.json

A model with random parameters is written to a temporary folder and opened many times, by turns
with all checks, with the hashes of its files alone (as in version 0.1), and without any. What
remains then is reading the configuration, the words and the parameters into memory. The files are
in the system's cache, so it is the time of the processor that is measured.
"""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import tyro

from bighmm.base import json_files, tensor_files
from bighmm.data.tokenizers import Words
from bighmm.lm import hmmlm
from bighmm.lm.hmmlm import HMMLM
from bighmm.lm.opening import open_model
from bighmm.model.params import find
from bighmm.model.support import Blocked
from record import save, settings_of, surroundings


@dataclass(frozen=True)
class Arguments:
    states: int = 32_768
    blocks: int = 128
    words: int = 10_000
    width: int = 256
    repeats: int = 30
    """Openings of each kind, by turns."""
    out: str = "bench/opening.json"
    """File for the figures, under results/."""


def main(arguments: Arguments) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        write_model(arguments, folder)
        size = sum(path.stat().st_size for path in folder.iterdir())
        times = measure(folder, arguments.repeats)
    found = {kind: statistics.median(seconds) for kind, seconds in times.items()}
    slower = found["checked"] / found["hashes alone"] - 1
    for kind, seconds in found.items():
        print(f"{kind:13} {seconds:.4f} s (fastest {min(times[kind]):.4f} s)")
    print(f"all checks take {slower:.1%} more than hashes alone")
    result = {
        "configuration": settings_of(arguments),
        "bytes": size,
        "median_seconds": {kind: round(seconds, 5) for kind, seconds in found.items()},
        "fastest_seconds": {kind: round(min(times[kind]), 5) for kind in times},
        "slower_than_hashes_alone": round(slower, 4),
        **surroundings(),
    }
    print(f"saved to {save(arguments.out, result)}")


def write_model(arguments: Arguments, folder: Path) -> None:
    """A blocked model of the size, with random parameters."""
    tokenizer = Words.build(f"word{i}" for i in range(arguments.words))
    blocks = torch.arange(tokenizer.size) % arguments.blocks
    kind = find("neural")
    options: Any = kind.options(width=arguments.width)
    support = Blocked.of(blocks, arguments.states)
    HMMLM("neural", options, support, tokenizer, seed=1).save_pretrained(folder)


def measure(folder: Path, repeats: int) -> dict[str, list[float]]:
    """Seconds of each opening, by what is checked."""
    contexts: dict[str, Any] = {
        "checked": contextlib.nullcontext,
        "hashes alone": hashes_alone,
        "unchecked": unchecked,
    }
    times: dict[str, list[float]] = {kind: [] for kind in contexts}
    for kind in contexts:  # imports, and the system's cache
        with contexts[kind]():
            open_model(folder)
    for _ in range(repeats):
        for kind, context in contexts.items():
            with context():
                began = time.perf_counter()
                open_model(folder)
                times[kind].append(time.perf_counter() - began)
    return times


@contextlib.contextmanager
def hashes_alone() -> Iterator[None]:
    """Context in which the hashes of files are all that is checked."""
    with (
        mock.patch.object(tensor_files, "check_numbers", _nothing),
        mock.patch.object(hmmlm, "check_state", _nothing),
        mock.patch.object(json_files, "_check", _nothing),
        mock.patch.object(json_files, "read_sealed", _without_seal),
        mock.patch.object(hmmlm, "read_sealed", _without_seal),
    ):
        yield


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """Context in which nothing is checked."""
    with hashes_alone(), mock.patch.object(hmmlm, "check_hashes", _nothing):
        yield


def _nothing(*given: Any, **named: Any) -> None:
    return None


def _without_seal(path: Path, **named: Any) -> tuple[dict[str, Any], bool]:
    found = json_files.read_json(path, **named)
    return {name: value for name, value in found.items() if name != json_files.SEAL}, True


if __name__ == "__main__":
    main(tyro.cli(Arguments))
