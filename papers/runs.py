"""Runs that the tables of a paper lack: each is `bighmm train` in a process of its own.

Folders that recipes refer to are made first, one after the other. The processes run in the
checkout, since paths in recipes are relative to it. Each name is locked: several of these programs
can run at the same time, as long as they do not make the same thing.
"""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Iterator, Sequence
from functools import partial

from bighmm.base import processes
from bighmm.base.locks import locked_name
from papers.jobs import Files, Job, folder_of, to_check, to_prepare
from papers.prepare import needs
from papers.results import Results
from papers.rows import Paper, Prepare, Step
from papers.schedule import Task, run_tasks
from papers.several import share_jobs
from papers.workers import Say, Workers, log_name


@contextlib.contextmanager
def reserved(paper: Paper, jobs: Sequence[Job]) -> Iterator[None]:
    """Context in which no other process makes these runs, or the folders that they need.

    Raises ValueError if another process makes one of them.
    """
    everything: list[Prepare | Job] = (
        [*to_prepare(paper, jobs), *jobs] if processes.current().first else []
    )
    with _locked(paper, everything):
        yield


@contextlib.contextmanager
def reserved_plan(paper: Paper, plan: Sequence[tuple[Step, Prepare | Job]]) -> Iterator[None]:
    """As `reserved`, for what a plan has still to make."""
    with _locked(paper, [what for _, what in plan]):
        yield


def run_jobs(paper: Paper, jobs: Sequence[Job], files: Files, at_once: int, say: Say) -> list[str]:
    """Train all runs, `at_once` at the same time, and return the names of those that failed.

    Folders that they need are made first; a run fails if one of its folders could not be made.
    Several processes of a launcher share the runs, and each trains one at a time. On
    Ctrl-C, SIGTERM or SIGHUP every run saves itself and stops, on a second one without saving. When
    all have ended, KeyboardInterrupt is raised.
    """
    workers, here = Workers(paper, files, say), processes.current()

    def run(some: Sequence[Job], with_folders: bool) -> list[str]:
        entries = to_prepare(paper, jobs) if with_folders else []
        tasks = [_preparing(workers, entry) for entry in entries]
        tasks += [_making(workers, job, 1 / max(at_once, here.count)) for job in some]
        return _failed(some, _run(tasks, workers, None))

    return run(jobs, True) if here.alone else share_jobs(here, paper, jobs, files, run)


def run_plan(
    paper: Paper,
    plan: Sequence[tuple[Step, Prepare | Job]],
    results: Results,
    files: Files,
    say: Say,
    seconds: float | None = None,
) -> list[str]:
    """Make what a plan has still to make, side by side as it says, for so many seconds at most.

    Then every run saves itself and stops, and what has not begun is left for the next time. Where
    the paper asks for it, models are checked to be normalised; those that were trained before too.
    Returns the names of runs that failed.
    """
    until = None if seconds is None else time.monotonic() + seconds
    workers = Workers(paper, files, say)
    tasks = []
    for step, what in plan:
        if isinstance(what, Prepare):
            tasks.append(_preparing(workers, what, step.load))
            continue
        tasks.append(_making(workers, what, step.load))
        if to_check(paper, results, what):
            folder = folder_of(paper, what.name)
            check = partial(workers.check, what)
            tasks.append(Task(f"{folder} check", check, frozenset([folder]), load=0.0))
    ended = _run(tasks, workers, until)
    if workers.stopping:
        say(f"the time is over; {len(tasks) - sum(ended.values())} of {len(tasks)} are left")
    return [] if workers.stopping else _failed([j for _, j in plan if isinstance(j, Job)], ended)


def _run(tasks: Sequence[Task], workers: Workers, until: float | None) -> dict[str, bool]:
    def interrupted() -> None:
        workers.say("stopping; every run saves itself first, once more to stop without that")

    with _signals_as_ctrl_c():
        return run_tasks(tasks, workers.stop, until=until, interrupted=interrupted)


def _preparing(workers: Workers, entry: Prepare, load: float = 1.0) -> Task:
    others = frozenset(other.makes for other in needs(entry, workers.paper))
    return Task(entry.makes, partial(workers.prepare, entry), others, load)


def _making(workers: Workers, job: Job, load: float) -> Task:
    at_once = max(1, round(1 / load)) if load else 1
    work = partial(workers.make, job, at_once)
    return Task(folder_of(workers.paper, job.name), work, frozenset(job.needs), load)


def _failed(jobs: Sequence[Job], ended: dict[str, bool]) -> list[str]:
    """The names of jobs that have ended without success."""
    by_name = {name.rpartition("/")[2]: done for name, done in ended.items()}
    return [job.name for job in jobs if not by_name.get(job.name, True)]


@contextlib.contextmanager
def _locked(paper: Paper, everything: Sequence[Prepare | Job]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for what in everything:
            name = log_name(what) if isinstance(what, Prepare) else what.name
            stack.enter_context(locked_name(paper.runs / name))
        yield


@contextlib.contextmanager
def _signals_as_ctrl_c() -> Iterator[None]:
    """Context in which SIGTERM and SIGHUP raise KeyboardInterrupt, unless they are ignored.

    Under nohup SIGHUP is.
    """

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    names = ("SIGTERM", "SIGHUP")
    known = [getattr(signal, name) for name in names if hasattr(signal, name)]
    numbers = [number for number in known if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
