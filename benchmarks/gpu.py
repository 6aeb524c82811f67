"""Time and memory of the operations of `operations.py` and `gpu_peers.py` on a GPU.

    python benchmarks/gpu.py blocked_step
    python benchmarks/gpu.py dense_step --states 512 1024

There is one table per operation. Each row has the time, the memory, the rate of the necessary
matrix products, and a floor: the time of these products at the rate of large bfloat16 products in
the same run. An operation with a wrong result in this run gets no figures. Results go to
results/bench/.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import tyro
from rich.console import Console
from rich.table import Table

import gpu_peers  # noqa: F401  (registers more operations)
import operations
from operations import OPERATIONS, Measured
from record import save, surroundings


@dataclass(frozen=True)
class Arguments:
    operations: tyro.conf.Positional[tuple[str, ...]]
    """Names of operations; by default all."""
    states: tuple[int, ...] = ()
    """Numbers of states; by default those of the operation."""
    repeats: int = 100
    data: str | None = None
    """A corpus for the blocked step, as for `bighmm train --data`; by default random text."""


def main(arguments: Arguments) -> None:
    if not torch.cuda.is_available():
        sys.exit("these benchmarks need a GPU")
    unknown = [name for name in arguments.operations if name not in OPERATIONS]
    if unknown:
        sys.exit(f"there is no operation {unknown[0]!r}; there are {', '.join(OPERATIONS)}")
    operations.DATA = arguments.data
    ceiling = _matrix_rate(arguments.repeats)
    console = Console(width=110)
    for name in arguments.operations or tuple(OPERATIONS):
        chosen = OPERATIONS[name]
        table = Table("states", "ms", "GiB", "TFLOP/s", "floor ms", "error", "", title=name)
        rows = []
        sizes = arguments.states or chosen.states
        measured = [(name, states) for states in sizes]
        if chosen.beside:
            known = OPERATIONS[chosen.beside].states
            measured += [(chosen.beside, states) for states in sizes if states in known]
        for operation, states in measured:
            row = _measure(operation, states, arguments.repeats, ceiling)
            rows.append(row)
            figures = ("ms", "peak_gib", "tflops", "floor_ms")
            shown = [f"{row[key]:.3f}" if key in row else "-" for key in figures]
            table.add_row(f"{states:,}", *shown, f"{row['error']:.1e}", operation)
        console.print(table)
        print(f"saved to {save(f'bench/{name}.json', rows)}")


def _measure(name: str, states: int, repeats: int, ceiling: float) -> dict[str, Any]:
    chosen = OPERATIONS[name]
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    work = chosen.make(states)
    off = work.error()
    row: dict[str, Any] = {"operation": name, "states": states, **work.details, "error": off}
    if chosen.peer:
        row["peer"] = chosen.peer
    if not off <= work.tolerance:
        row["wrong"] = f"off by {off:.2g}, and at most {work.tolerance:.2g} is right"
        return row | surroundings()
    gc.collect()
    torch.cuda.empty_cache()  # what the check needed is not the operation's
    torch.cuda.reset_peak_memory_stats()
    ms = _milliseconds(work, repeats)
    row |= {
        "ms": ms,
        "peak_gib": torch.cuda.max_memory_reserved() / 2**30,
    }
    if work.flop:
        row |= {"tflops": work.flop / ms / 1e9, "floor_ms": work.flop / ceiling * 1e3}
    del work
    return row | surroundings()


def _milliseconds(work: Measured, repeats: int) -> float:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            work.run()
    torch.cuda.synchronize()
    if not work.capture:
        return _timed(work.run, repeats)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        work.run()
    return _timed(graph.replay, repeats)


def _timed(run: Callable[[], object], repeats: int) -> float:
    """Milliseconds per run: the median over a few batches of runs."""
    found = []
    for _ in range(5):
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(max(1, repeats // 5)):
            run()
        torch.cuda.synchronize()
        end.record()
        torch.cuda.synchronize()
        found.append(begin.elapsed_time(end) / max(1, repeats // 5))
    return sorted(found)[2]


def _matrix_rate(repeats: int) -> float:
    """FLOP/s of large bfloat16 products."""
    a, b = (torch.randn(8192, 8192, device="cuda").bfloat16() for _ in range(2))
    ms = _timed(lambda: a @ b, repeats)
    return 2.0 * 8192**3 / (ms / 1e3)


if __name__ == "__main__":
    main(tyro.cli(Arguments))
