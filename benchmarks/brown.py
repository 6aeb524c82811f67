"""Brown clustering of a corpus: time on one core, and the average mutual information.

    OMP_NUM_THREADS=1 python benchmarks/brown.py PTB_FOLDER WIKITEXT_FOLDER
    OMP_NUM_THREADS=1 python benchmarks/brown.py FOLDER --classes 512 1024 --out FILE

Each number of classes is a process of its own, so that its peak of memory is its own. Seconds are
of the wall clock; `cpu_seconds` is the time of the process, which other processes disturb less.

For comparison: wcluster, the usual program, reaches 0.9603 nats on the Penn Treebank with 128
classes in about 10 s, and takes about 37 s for WikiText-2.
"""

from __future__ import annotations

import multiprocessing
import resource
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from bighmm.data import brown
from bighmm.data.corpus import prepare
from record import save, surroundings


@dataclass(frozen=True)
class Arguments:
    data: tyro.conf.Positional[tuple[str, ...]]
    """Corpora, as for `bighmm train --data`."""
    classes: tuple[int, ...] = (128, 512, 2048)
    out: str = "bench/brown.json"
    """File for the figures, under results/."""


def measure(source: str, classes: int) -> dict[str, Any]:
    """The figures of one clustering."""
    corpus = prepare(source)
    train = corpus.split("train")
    began, began_cpu = time.perf_counter(), time.process_time()
    clusters = brown.cluster(train, corpus.tokenizer.size, classes)
    return {
        "operation": "Brown clustering",
        "corpus": corpus.manifest["source"].get("name", Path(source).name),
        "tokens": len(train),
        "words": corpus.tokenizer.size,
        "classes": classes,
        "information_nats": clusters.information,
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - began_cpu,
        "peak_memory_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        **surroundings(),
    }


def main(arguments: Arguments) -> None:
    rows = []
    for source in arguments.data:
        for classes in arguments.classes:
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                row = pool.apply(measure, (source, classes))
            print(
                f"{row['corpus']}, {classes} classes: {row['information_nats']:.4f} nats in "
                f"{row['seconds']:.1f} s ({row['cpu_seconds']:.1f} s of CPU), "
                f"{row['peak_memory_gib']:.2f} GiB",
                flush=True,
            )
            rows.append(row)
    print(f"saved to {save(arguments.out, rows)}")


if __name__ == "__main__":
    main(tyro.cli(Arguments))
