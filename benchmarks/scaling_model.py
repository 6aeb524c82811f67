"""A cost model of a training step of several processes: compute, bytes and latency.

    seconds = compute · crowding + calls · latency(N) + bytes · per_byte(N)

compute   the work of one process of N, when it has a core or a GPU to itself and sends nothing
crowding  how much two processes slow each other down, as they share caches and memory, or one GPU;
          and with more processes, max(1, N / cores)
latency, per_byte   of a sum over N processes, as measured with two. Those of a ring grow with
          2 (N − 1) and with 2 (N − 1) / N, and also with N / cores where the processes do the
          sending themselves
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Machine:
    """What was measured of a machine on its own."""

    cores: int  # or GPUs
    slowing: float  # of two processes by each other, whether or not each has a core of its own
    hop_seconds: float  # of a message to the next process
    byte_seconds: float  # of each byte of such a message

    def crowding(self, processes: int) -> float:
        return self.sharing(processes) * (self.slowing if processes > 1 else 1.0)

    def sharing(self, processes: int) -> float:
        """How many processes share a core, compared with two, which were measured together."""
        return max(1.0, processes / max(self.cores, 2))

    def sum_seconds(self, processes: int, calls: float, size: float) -> float:
        """Of `calls` sums of `size` bytes in all over so many processes."""
        if processes == 1:
            return 0.0
        shared, hops = self.sharing(processes), 2 * (processes - 1)
        return shared * hops * (calls * self.hop_seconds + size / processes * self.byte_seconds)

    def step_seconds(self, compute: float, processes: int, calls: float, size: float) -> float:
        return compute * self.crowding(processes) + self.sum_seconds(processes, calls, size)


def machine_of(cores: int, slowing: float, sums: list[tuple[int, float]]) -> Machine:
    """A machine from the seconds of sums of some bytes over two processes, small ones first."""
    (small, least), (large, most) = sums[0], sums[-1]
    per_byte = (most - least) / (large - small)
    return Machine(cores, slowing, (least - small * per_byte) / 2, per_byte)


@dataclass(frozen=True)
class Cluster:
    """GPUs in machines; the figures are assumptions, none of them was measured here."""

    per_machine: int = 8
    nvlink: float = 360e9  # bytes per second of a sum within a machine (NCCL's bus bandwidth)
    nvlink_latency: float = 30e-6  # seconds of a sum within a machine
    infiniband: float = 45e9  # bytes per second and GPU between machines: 400 Gb/s at 90 %
    infiniband_latency: float = 60e-6  # more, of a sum over several machines
    row_flops: float = 330e12  # FLOP per second of work that grows with the rows
    bucket_bytes: float = 16 * 2**20

    def sum_seconds(self, gpus: int, size: float) -> float:
        if gpus == 1:
            return 0.0
        inside = min(gpus, self.per_machine)
        calls = max(1.0, size / self.bucket_bytes) + 1  # and the loss
        seconds = calls * self.nvlink_latency + 2 * (inside - 1) / inside * size / self.nvlink
        machines = gpus // inside
        if machines > 1:  # every GPU sums its part of the numbers over the machines
            seconds += calls * self.infiniband_latency
            seconds += 2 * (machines - 1) / machines * size / inside / self.infiniband
        return seconds


@dataclass(frozen=True)
class TwoLevelStep:
    """A step of two-level transitions on a GPU, from measured steps of 16 rows of 32 words.

    seconds = fixed + present · per_state + rows · per_row. `present` are the states that a step
    computes: half of those of the blocks that its words are in.
    """

    fixed: float
    per_state: float
    per_row: float
    width: int = 256
    window: int = 32
    words: int = 10_000

    @staticmethod
    def of(measured: list[dict[str, Any]], cluster: Cluster) -> TwoLevelStep:
        """From steps of several numbers of states, by least squares."""
        own = states_per_block(measured[0]) / 2
        flop = 18.0 * TwoLevelStep.window * own**2 * TwoLevelStep.width  # of a row
        per_row = flop / cluster.row_flops
        x = [present_states(row["states"], row["blocks"], 16) for row in measured]
        y = [row["ms"] / 1e3 - 16 * per_row for row in measured]
        mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
        covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
        per_state = covariance / sum((a - mean_x) ** 2 for a in x)
        return TwoLevelStep(mean_y - per_state * mean_x, per_state, per_row)

    def seconds(self, states: int, blocks: int, rows: int, own_rows: int) -> float:
        """Of a process with its own rows of a batch of `rows`."""
        present = present_states(states, blocks, rows)
        return self.fixed + present * self.per_state + own_rows * self.per_row

    def bytes(self, states: int, blocks: int, rows: int) -> float:
        """That are added up in a step: gradients of the rows that it touches, and of networks."""
        touched = min(self.words, rows * self.window) + present_states(states, blocks, rows)
        networks = 4 * 3 * self.width**2 + blocks * self.width
        return 4.0 * (touched * self.width + networks)


def states_per_block(row: dict[str, Any]) -> int:
    return row["states"] // row["blocks"]


def present_states(states: int, blocks: int, rows: int, window: int = 32) -> float:
    """Expected states of the blocks of rows · window words, of blocks of the benchmark's sizes."""
    sizes = [math.exp(math.log(560.0) * i / (blocks - 1)) for i in range(blocks)]
    total = sum(sizes)
    found = sum(1 - (1 - size / total) ** (rows * window) for size in sizes)
    return found * states / blocks / 2


def predictions(measured: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What 1, 8 and 64 GPUs should give; with sums that wait, and with sums behind the backward
    pass, which is taken as two thirds of the compute.
    """
    cluster = Cluster()
    step = TwoLevelStep.of(measured, cluster)
    rows = []
    for states, blocks in ((row["states"], row["blocks"]) for row in measured):
        for batch in (16, 128, 1024):
            alone = step.seconds(states, blocks, batch, batch)
            for gpus in (1, 8, 64):
                if gpus > batch:
                    continue
                compute = step.seconds(states, blocks, batch, math.ceil(batch / gpus))
                size = 0.0 if gpus == 1 else step.bytes(states, blocks, batch)
                sums = cluster.sum_seconds(gpus, size)
                hidden = min(sums, compute * 2 / 3)
                rows.append(
                    {
                        "states": states,
                        "blocks": blocks,
                        "rows": batch,
                        "gpus": gpus,
                        "compute_ms": 1e3 * compute,
                        "bytes": size,
                        "sum_ms": 1e3 * sums,
                        "step_ms": 1e3 * (compute + sums),
                        "step_ms_overlapped": 1e3 * (compute + sums - hidden),
                        "times_as_fast_as_one": alone / (compute + sums),
                    }
                )
    return rows


def assumptions(measured: list[dict[str, Any]]) -> dict[str, Any]:
    cluster = Cluster()
    return {**asdict(cluster), "step": asdict(TwoLevelStep.of(measured, cluster))}
