"""Brown clustering of corpora: time on one core, and the average mutual information.

    python benchmarks/brown.py PTB_FOLDER WIKITEXT_FOLDER

For comparison: wcluster, the usual program, reaches 0.9603 nats on the Penn Treebank with 128
classes in about 10 s, and takes about 37 s for WikiText-2.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro

from bighmm.data import brown
from bighmm.data.corpus import prepare
from record import save, surroundings


@dataclass(frozen=True)
class Arguments:
    data: tyro.conf.Positional[tuple[str, ...]]
    """Corpora, as for `bighmm train --data`."""
    classes: int = 128
    out: str = "bench/brown.json"
    """File for the figures, under results/."""


def main(arguments: Arguments) -> None:
    rows = []
    for source in arguments.data:
        corpus = prepare(source)
        train = np.asarray(corpus.split("train"))
        began = time.perf_counter()
        clusters = brown.cluster(train, corpus.tokenizer.size, arguments.classes)
        seconds = time.perf_counter() - began
        print(f"{source}: {clusters.information:.4f} nats in {seconds:.1f} s")
        rows.append(
            {
                "operation": "Brown clustering",
                "corpus": Path(source).name,
                "tokens": len(train),
                "words": corpus.tokenizer.size,
                "classes": arguments.classes,
                "information_nats": clusters.information,
                "seconds": seconds,
                **surroundings(),
            }
        )
    print(f"saved to {save(arguments.out, rows)}")


if __name__ == "__main__":
    main(tyro.cli(Arguments))
