"""Rows of a paper over the processes of a launcher: each process trains one run after the other.

    torchrun --nproc-per-node 8 -m -- bighmm reproduce PAPER --run --data …

The two dashes keep torchrun from taking --run for a flag of its own.

The first process makes the folders that recipes refer to. Then every process takes the next run
that nobody has taken, on a GPU of its own where there are any, until none is left. What is mixed
from other runs comes last, by the first process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bighmm.base import launch
from bighmm.base.processes import Processes
from papers.jobs import Files, Job, folder_of
from papers.rows import Paper


def share_jobs(
    here: Processes,
    paper: Paper,
    jobs: Sequence[Job],
    files: Files,
    run: Callable[[Sequence[Job], bool], list[str]],
) -> list[str]:
    """The names of runs that failed in any process.

    run: trains some of the jobs, after all folders that they need if it is told so, and gives the
    names of those that failed.
    """
    here.require_alike({"rows to train": repr([job.name for job in jobs]), "data": repr(files)})
    folders = {folder_of(paper, job.name) for job in jobs}
    last = [job for job in jobs if folders & set(job.needs)]
    free = [job for job in jobs if job not in last]
    with here.first_does() as mine:
        if mine:
            run([], True)
    failed = []
    while (turn := here.next_turn("row")) < len(free):
        failed += run([free[turn]], False)
    failed = [name for some in here.from_each(failed) for name in some]
    with here.first_does() as mine:
        if mine:
            failed += run(last, False)
    return here.from_first(failed)


def environment() -> dict[str, str]:
    """The environment of a command that a process runs on its own, with its own GPU if any."""
    known = launch.environment_alone()
    if not launch.asked_for():
        return known
    given = known.get("CUDA_VISIBLE_DEVICES")
    devices = given.split(",") if given else _devices()
    if devices:
        known["CUDA_VISIBLE_DEVICES"] = devices[launch.place_on_machine() % len(devices)]
    return known


def _devices() -> list[str]:
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]
