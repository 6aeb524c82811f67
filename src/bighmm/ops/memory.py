"""How many numbers a piece of work may hold at once.

Work on large matrices is cut into pieces. The limits below are for a CPU; a GPU may hold
`GPU_FACTOR` times as many. They are read at every call, so a test can lower them.
"""

from __future__ import annotations

import torch

WORKING = 2**24  # tiles, rows or potentials of one piece: 64 MiB in float32
STREAMED = 2**22  # logits of one piece of a streamed normaliser: 16 MiB
TILE = 2**20  # part of a matrix that is used right after it is made, in the cache: 4 MiB
CACHED = 2**26  # a matrix that is kept between steps, 8,192 states square: 256 MiB
POOLED = 2**25  # memory of parts of matrices that is used again on a CPU: 128 MiB
RULE_TABLES = 2**26  # tables of the rules that are worked on together: 256 MiB
LOGITS = 2**28  # logits of a neural language model over a part of a stream: 1 GiB
ANSWER = 2**30  # a table of pairs of states that is itself the answer, of 32,768: 4 GiB
GPU_FACTOR = 32


def limit(elements: int, device: torch.device) -> int:
    """The limit on a device, where that of a CPU is `elements`."""
    return elements * (GPU_FACTOR if device.type == "cuda" else 1)


def at_once(cost: int, device: torch.device, elements: int | None = None) -> int:
    """How many items of `cost` numbers each fit into one piece of work, at least one."""
    return max(1, limit(WORKING if elements is None else elements, device) // max(1, cost))


def pieces(count: int, cost: int, device: torch.device, elements: int | None = None) -> list[slice]:
    """0 … count-1 cut into pieces of items that cost so many numbers each."""
    step = at_once(cost, device, elements)
    return [slice(i, min(i + step, count)) for i in range(0, count, step)]
