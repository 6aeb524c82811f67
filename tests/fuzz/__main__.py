"""Run cases, show the progress, print and save what failed; status 1 if anything did."""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # its threads do not outlive a fork
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from papers.record import surroundings

from .attacks import ATTACKS, cases_of, prepare, work_of
from .folders import build
from .originals import fingerprints
from .outcome import DIFFERENT, MEMORY, ROOT, SECONDS, Case, Outcome, Tally, run_cases

RESULT = ROOT / "results" / "fuzz.json"


def main() -> int:
    asked = _arguments()
    torch.set_num_threads(1)
    os.fsync = lambda descriptor: None  # no loss of power is staged here
    kinds = asked.only or list(ATTACKS)
    cases = cases_of(kinds, asked.cases, asked.seed)
    if asked.case is not None:
        cases = [Case(kind, asked.seed, asked.case) for kind in kinds]
    for number in (signal.SIGINT, signal.SIGTERM):  # in the background, too
        signal.signal(number, signal.default_int_handler)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=_fast_folder(), prefix="bighmm-fuzz-") as place:
        originals = build(_made(Path(place) / "originals"))
        before = fingerprints(originals)
        prepare(kinds)
        gc.collect()
        gc.freeze()  # so that forked processes share it
        found = _run(cases, work_of(originals), _made(Path(place) / "cases"), asked.jobs)
        answers = [(case, _without(outcome, place)) for case, outcome in found]
        answers += _changed(before, fingerprints(originals), asked.seed)
    tallies, failures = _summary(answers)
    _show_all([one for one in answers if asked.case is not None or one[1].status in asked.show])
    _print(tallies, failures)
    if asked.out is not None:
        value = _result(asked, kinds, tallies, failures, time.monotonic() - began)
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
    return 1 if failures else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=2000, help="how many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", choices=list(ATTACKS), help="this kind")
    parser.add_argument("--case", type=int, help="only this case of each kind")
    parser.add_argument("--show", action="append", default=[], help="all cases of this outcome")
    parser.add_argument("--jobs", type=int, default=1, help="processes side by side")
    parser.add_argument(
        "--out", type=Path, help=f"the result file; of all kinds {RESULT.relative_to(ROOT)}"
    )
    asked = parser.parse_args()
    if asked.out is None and asked.only is None and asked.case is None:
        asked.out = RESULT
    return asked


def _run(cases: list[Case], work: Any, place: Path, jobs: int) -> list[tuple[Case, Outcome]]:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    found = []
    # No thread of its own: the processes are forked from this one.
    with Progress(*columns, TimeElapsedColumn(), console=console, auto_refresh=False) as progress:
        task, shown = progress.add_task("cases", total=len(cases)), 0.0
        with contextlib.suppress(KeyboardInterrupt):  # what was done until then is told
            for case, outcome in run_cases(cases, work, place, jobs):
                found.append((case, outcome))
                failed = sum(outcome.failed for _, outcome in found)
                progress.update(task, advance=1, description=f"{case.kind}, {failed} failed")
                if time.monotonic() - shown > 0.5:
                    progress.refresh()
                    shown = time.monotonic()
        progress.refresh()
    return sorted(found, key=lambda one: (one[0].kind, one[0].number))


def _summary(
    answers: list[tuple[Case, Outcome]],
) -> tuple[dict[str, Tally], list[tuple[Case, Outcome]]]:
    tallies: dict[str, Tally] = {}
    for case, outcome in answers:
        tallies.setdefault(case.kind, Tally()).add(outcome)
    return tallies, [answer for answer in answers if answer[1].failed]


def _print(tallies: dict[str, Tally], failures: list[tuple[Case, Outcome]]) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for case, outcome in failures:
        console.print(f"[bold]{case.kind} {case.number}[/]: {case.command()}")
        for text in (outcome.doing, outcome.said, outcome.where):
            console.print(text[:1500], markup=False, style="dim" if text is outcome.where else "")
        console.print()
    statuses = ("same", *DIFFERENT, "refused", "failed")
    table = Table("attack", *statuses, "seconds")
    for kind, tally in tallies.items():
        counts = (str(tally.counts.get(status, 0)) for status in statuses)
        table.add_row(kind, *counts, f"{tally.seconds:.1f}")
    console.print(table)


def _show_all(answers: list[tuple[Case, Outcome]]) -> None:
    for case, outcome in answers:
        print(f"{case.kind} {case.number}: {outcome.doing}")
        print(f"{outcome.status}: {outcome.said}\n{outcome.where}")


def _result(
    asked: argparse.Namespace,
    kinds: list[str],
    tallies: dict[str, Tally],
    failures: list[tuple[Case, Outcome]],
    seconds: float,
) -> dict[str, Any]:
    return {
        "configuration": {
            "cases": sum(sum(tally.counts.values()) for tally in tallies.values()),
            "asked": asked.cases,  # fewer are done if it is interrupted
            "seed": asked.seed,
            "kinds": kinds,
            "seconds_of_a_case": SECONDS,
            "bytes_of_a_case": MEMORY,
        },
        "outcomes": {kind: tally.counts for kind, tally in tallies.items()},
        "other_answers": DIFFERENT,
        "failures": [
            {"command": case.command(), "doing": o.doing, "said": o.said, "where": o.where}
            for case, o in failures
        ],
        "seconds": round(seconds, 1),
        "processor_seconds": round(sum(tally.seconds for tally in tallies.values()), 1),
        "jobs": asked.jobs,
        **surroundings(),
    }


def _changed(
    before: dict[str, str], after: dict[str, str], seed: int
) -> list[tuple[Case, Outcome]]:
    """A failure if any case has changed files that are not its own."""
    changed = sorted(name for name in {*before, *after} if before.get(name) != after.get(name))
    if not changed:
        return []
    said = f"files of others were changed: {', '.join(changed[:9])}"
    return [(Case("arguments", seed, -1), Outcome("failed", "all cases", said))]


def _without(outcome: Outcome, place: str) -> Outcome:
    """An outcome that names neither the temporary folder nor that of this repository."""
    texts = {
        name: getattr(outcome, name).replace(place, "").replace(f"{ROOT}/", "")
        for name in ("doing", "said", "where")
    }
    return Outcome(outcome.status, **texts, seconds=outcome.seconds)


def _fast_folder() -> str | None:
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


if __name__ == "__main__":
    sys.exit(main())
