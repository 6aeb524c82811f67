"""Tasks that wait for each other and share a machine, some of them at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

ROUNDING = 1e-6  # of the sum of loads


@dataclass(frozen=True)
class Task:
    """Something to do: `work` says whether it succeeded.

    needs: names of tasks that must have ended before, however they did.
    load: the share of the machine that it takes; tasks of load 0 never wait for others.
    """

    name: str
    work: Callable[[], bool]
    needs: frozenset[str] = frozenset()
    load: float = 1.0


def run_tasks(
    tasks: Sequence[Task],
    stop: Callable[[], None],
    *,
    until: float | None = None,
    interrupted: Callable[[], None] = lambda: None,
) -> dict[str, bool]:
    """Do all tasks and return whether each succeeded; those that were not begun are left out.

    They begin in their order. One that needs others lets later ones go first until it is ready; one
    that is ready and does not fit beside those that are under way holds up all later ones of any
    load. `stop` asks those under way to end: at the time `until` of `time.monotonic`, and when the
    user interrupts the program. Then KeyboardInterrupt is raised once all have ended, and
    `interrupted` is called before.
    """
    waiting, running, ended = list(tasks), dict[Future[bool], Task](), dict[str, bool]()
    names = {task.name for task in tasks}
    with ThreadPoolExecutor(max(1, len(tasks))) as threads:
        try:
            while waiting or running:
                for task in _to_begin(waiting, running.values(), ended, names):
                    waiting.remove(task)
                    running[threads.submit(task.work)] = task
                left = None if until is None else max(0.0, until - time.monotonic())
                done, _ = wait(running, left, FIRST_COMPLETED)
                for future in done:
                    ended[running.pop(future).name] = future.result()
                if until is not None and time.monotonic() >= until:
                    stop()
                    wait(running)
                    return ended | {task.name: f.result() for f, task in running.items()}
        except KeyboardInterrupt:
            interrupted()
            _stop(stop, list(running))
            raise
    return ended


def _to_begin(
    waiting: Sequence[Task], running: Iterable[Task], ended: dict[str, bool], names: set[str]
) -> list[Task]:
    """The tasks that can begin now."""
    found, load, full = [], sum(task.load for task in running), False
    for task in waiting:
        if not (task.needs & names) <= set(ended):
            continue
        if task.load == 0:
            found.append(task)
            continue
        full = full or (load > 0 and load + task.load > 1 + ROUNDING)
        if not full:
            found.append(task)
            load += task.load
    return found


def _stop(stop: Callable[[], None], futures: Sequence[Future[bool]]) -> None:
    """Ask until all have ended, also if the user interrupts again."""
    while True:
        try:
            stop()
            wait(futures)
            return
        except KeyboardInterrupt:
            continue
