"""Curves of a run from its log.jsonl, which may still grow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bighmm.base.locks import Busy, check_free
from bighmm.base.reading import read_part
from bighmm.train.logs import LOG, STEP_FIELDS, entry_of

MOST = 1 << 23  # bytes of a log that are read at once


@dataclass(frozen=True)
class Curves:
    """What a part of a log says."""

    next: int  # the byte where the rest of the log begins
    reset: bool  # whether the log has become shorter, so that what was read before is void
    more: bool  # whether there is more to read already
    total_steps: int | None
    steps: dict[str, list[float | None]]  # a column for each of STEP_FIELDS and tokens_per_second
    checks: dict[str, list[Any]]  # "step", "perplexity" on the validation text, "best"


def has_log(run: Path) -> bool:
    """Whether a folder has the log of a run."""
    return (run / LOG).is_file()


def is_running(run: Path) -> bool:
    """Whether a process trains in the folder now."""
    try:
        check_free(run)
    except (Busy, OSError):
        return True
    return False


def read_curves(run: Path, after: int = 0, points: int = 1000) -> Curves:
    """The curves of a run, from the byte `after` of its log on, as at most `points` points.

    Neighbouring steps become one point: losses and speeds are means over them, the rest is that of
    the last one. Lines that are not whole yet are left for the next call; damaged ones are skipped.
    Raises ValueError if there is no log.
    """
    path = run / LOG
    if not has_log(run):
        raise ValueError(f"{run.name} has no {LOG}, so there are no curves of its training")
    size = path.stat().st_size
    reset = after > size
    begin = 0 if reset else after
    content = read_part(path, begin, MOST)
    whole = content[: content.rfind(b"\n") + 1]
    end = begin + len(whole)
    records = [record for record in map(entry_of, whole.splitlines()) if record is not None]
    steps = [record for record in records if record["kind"] == "step"]
    checks = [record for record in records if record["kind"] == "check"]
    total = steps[-1].get("total_steps") if steps else None
    return Curves(
        next=end,
        reset=reset,
        more=size > end and len(content) == MOST,
        total_steps=total if isinstance(total, int) else None,
        steps=_columns(steps, points),
        checks={
            "step": [record["step"] for record in checks],
            "perplexity": [record["perplexity"] for record in checks],
            "best": [record.get("best") is True for record in checks],
        },
    )


def _columns(steps: list[dict[str, Any]], points: int) -> dict[str, list[float | None]]:
    """Columns of at most `points` points."""
    names = (*STEP_FIELDS, "tokens_per_second")
    columns: dict[str, list[float | None]] = {name: [] for name in names}
    width = max(1, math.ceil(len(steps) / max(1, points)))
    before = None
    for first in range(0, len(steps), width):
        some = steps[first : first + width]
        last = some[-1]
        for name in STEP_FIELDS:
            columns[name].append(last[name])
        columns["loss"][-1] = sum(step["loss"] for step in some) / len(some)
        since = before or some[0]
        tokens, seconds = (last[name] - since[name] for name in ("tokens", "seconds"))
        # A run that was resumed may count its seconds anew.
        speed = tokens / seconds if seconds > 0 < tokens else math.inf
        columns["tokens_per_second"].append(speed if math.isfinite(speed) else None)
        before = last
    return columns
