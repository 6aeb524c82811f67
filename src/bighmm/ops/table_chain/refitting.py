"""New tables of log-probabilities from expected counts, for an iteration of Baum-Welch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bighmm.ops.table_chain import mixing

LEAST = {np.dtype(name): float(np.finfo(name).tiny) for name in ("float32", "float64")}


class LogTables(NamedTuple):
    """Log-probabilities of a model, or something for each of them."""

    start: np.ndarray  # (Z,)
    moves: np.ndarray  # (Z, Z)
    emission: np.ndarray  # (V, Z)


def shares(
    old: LogTables, counts: LogTables, size: float, added: tuple[float, float, float]
) -> LogTables:
    """New log-probabilities from counts, to each of which a number is added.

    size: 1 for the shares of the counts, less to go a part of the way to them.
    """
    kind, least = old.start.dtype, LEAST[old.start.dtype]
    new = tuple([np.empty(table.shape, kind) for table in old])
    stays = mixing.mix(tuple(old), tuple(counts), float(size), added, least, new)
    if not stays:
        return LogTables(*[np.log(table, out=table) for table in new])
    logs = tuple([np.log(np.maximum(table, kind.type(least))) for table in new])
    mixing.keep_old(tuple(old), new, logs)
    return LogTables(*logs)
