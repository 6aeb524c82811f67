"""Training what a paper's tables lack: each run is `bighmm train` in a process of its own.

A run lies in runs/PAPER/NAME with its output beside it in NAME.log. What was begun before is
resumed, and what is finished is only written to results/PAPER/NAME.json.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bighmm import baselines
from bighmm.files import read_json, write_json
from bighmm.recipe import differences, from_dict, read_recipe
from bighmm.reproduce.record import record_of
from bighmm.reproduce.results import result_files, run_name
from bighmm.reproduce.rows import Paper, Row

BIGHMM = (sys.executable, "-c", "from bighmm.cli.main import main; main()")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """One run that is to be made."""

    name: str
    recipe: Path
    corpus: str
    seed: int
    evaluates_train: bool  # whether perplexity on the training text is asked for too


class Failed(Exception):
    """A run has no result; the text says why, or where to read it."""


class _Stopping(Exception):
    """There is no point in beginning anything more."""


def missing(paper: Paper, selected: Paper, seeds: Sequence[int] = ()) -> list[Job]:
    """The runs that the selected rows lack; a recipe that several of them share is run once.

    Without `seeds` a row lacks one if it has no result at all, and it is then run with seed 1.
    Whether training text is evaluated is decided by all rows of the paper with that recipe.
    """
    with_train = {(row.recipe, row.corpus) for row in paper.rows if "train" in row.paper}
    jobs: dict[str, Job] = {}
    for row in selected.rows:
        if row.recipe is None:
            continue
        done = result_files(paper, row)
        for seed in _seeds(paper, row, seeds) if seeds or not done else ():
            if seed not in done:
                name = run_name(row, seed)
                train = (row.recipe, row.corpus) in with_train
                jobs[name] = Job(name, paper.recipe_file(row), row.corpus, seed, train)
    return list(jobs.values())


def find_data(given: Sequence[str], paper: Paper, jobs: Sequence[Job]) -> dict[str, str]:
    """From NAME=FOLDER the folder of each corpus; ValueError unless all that are needed are there.

    Folders become absolute, so that a run can be resumed from another one.
    """
    known = {row.corpus for row in paper.rows}
    found = {}
    for word in given:
        name, equals, folder = word.partition("=")
        if not (equals and folder):
            raise ValueError(f"--data {word} is not of the form NAME=FOLDER")
        if name not in known:
            raise ValueError(
                f"{paper.name} uses no corpus {name!r}; choose from {', '.join(sorted(known))}"
            )
        if folder != "pydoc":
            folder = os.path.abspath(os.path.expanduser(folder))
            if not os.path.exists(folder):
                raise ValueError(f"there is no corpus {folder} as --data {name}=… says")
        found[name] = folder
    lacking = sorted({job.corpus for job in jobs} - set(found))
    if lacking:
        flags = " ".join(f"--data {name}=FOLDER" for name in lacking)
        raise ValueError(f"training needs {' and '.join(lacking)}; say where with {flags}")
    return found


def run_jobs(
    paper: Paper, jobs: Sequence[Job], data: dict[str, str], at_once: int, say: Say
) -> list[str]:
    """Make all runs, `at_once` at the same time, and return the names of those that failed.

    On Ctrl-C, SIGTERM or SIGHUP every run is asked once to save itself, a second time not to; when
    all have ended, KeyboardInterrupt is raised.
    """
    workers = _Workers(paper, data, at_once, say)
    futures: list[Future[bool]] = []
    with ThreadPoolExecutor(at_once) as threads, _signals_as_ctrl_c():
        try:
            for job in jobs:
                futures.append(threads.submit(workers.make, job))
            wait(futures)
        except KeyboardInterrupt:
            say("stopping; every run saves itself first, once more to stop without that")
            _stop(workers, futures)
            raise
    return [job.name for job, future in zip(jobs, futures, strict=True) if not future.result()]


class _Workers:
    """What the threads do and share."""

    def __init__(self, paper: Paper, data: dict[str, str], at_once: int, say: Say) -> None:
        self.paper, self.data, self.at_once, self.say = paper, data, at_once, say
        self.lock = threading.Lock()
        self.processes: set[subprocess.Popen[bytes]] = set()
        self.stopping = False

    def make(self, job: Job) -> bool:
        """Whether the run has a result now."""
        if self.stopping:
            return False
        run, log = self.paper.runs / job.name, self.paper.runs / f"{job.name}.log"
        try:
            self._train(job, run, log)
            result = record_of(run)
            result["recipe"]["corpus"]["data"] = job.corpus
            result["at_once"] = self.at_once  # its seconds mean little if others ran beside it
            if job.evaluates_train:
                result["train"] = self._evaluate_train(job, run, log)
            self.paper.results.mkdir(parents=True, exist_ok=True)
            write_json(self.paper.results / f"{job.name}.json", result)
        except _Stopping:
            return False
        except (Failed, OSError, ValueError) as error:
            self.say(f"{job.name}: failed; {error}")
            return False
        figures = [f"{split} {result[split]['perplexity']:.1f}" for split in ("valid", "test")]
        self.say(f"{job.name}: finished; {', '.join(figures)}, {result['seconds']:,.1f} s")
        return True

    def stop(self) -> None:
        """Ask what runs to end, and begin nothing more."""
        with self.lock:
            self.stopping = True
            for process in self.processes:
                process.terminate()

    def _train(self, job: Job, run: Path, log: Path) -> None:
        settings = ("--data", self.data[job.corpus], "--seed", job.seed)
        command = ("train", "--recipe", job.recipe, *settings, "--out", run)
        if (run / "result.json").exists():
            _check_same(job, run)
            self.say(f"{job.name}: was trained before")
        elif (run / "recipe.json").exists():
            self.say(f"{job.name}: goes on")
            self._call((*command, "--resume"), log)
        else:
            self.say(f"{job.name}: started")
            self._call(command, log)

    def _evaluate_train(self, job: Job, run: Path, log: Path) -> dict[str, Any]:
        """Perplexity of the best model on the training text, where and as it was trained."""
        trained = read_json(run / "result.json")
        operands = trained["recipe"]["training"]["operands"]
        what = ("--data", self.data[job.corpus], "--split", "train")
        where = ("--device", trained["device"], "--operands", operands)
        return json.loads(self._call(("eval", run, *what, *where, "--json"), log))

    def _call(self, arguments: Sequence[object], log: Path) -> bytes:
        """What a command prints for programs; what it says to people goes to the log."""
        words = [str(word) for word in arguments]
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            file.write(f"$ bighmm {shlex.join(words)}\n".encode())
            file.flush()
            with self.lock:
                if self.stopping:
                    raise _Stopping
                # In a group of its own, it does not get a terminal's Ctrl-C besides our signal.
                process = subprocess.Popen(
                    [*BIGHMM, *words],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE if "--json" in words else file,
                    stderr=file,
                    process_group=0,
                )
                self.processes.add(process)
            try:
                printed, _ = process.communicate()
            finally:
                with self.lock:
                    self.processes.discard(process)
        if process.returncode and self.stopping:
            raise _Stopping
        if process.returncode:
            raise Failed(f"status {process.returncode}, read {log}{_last_sentence(log)}")
        return printed


def _seeds(paper: Paper, row: Row, seeds: Sequence[int]) -> Sequence[int]:
    """The seeds to run a row with; a model that is counted is the same with every one."""
    family = read_recipe(paper.recipe_file(row)).model.family
    if not seeds or (family != "hmm" and baselines.find(family).fit is not None):
        return (1,)
    return seeds


def _check_same(job: Job, run: Path) -> None:
    """ValueError if a finished run was made from another recipe than the job has now."""
    path = run / "result.json"
    made = from_dict(read_json(path)["recipe"], str(path))
    recipe = read_recipe(job.recipe)
    asked = dataclasses.replace(
        recipe,
        corpus=dataclasses.replace(recipe.corpus, data=made.corpus.data),
        training=dataclasses.replace(recipe.training, seed=job.seed),
    )
    if changed := differences(made, asked):
        raise ValueError(
            f"{run} holds a run with another configuration: {', '.join(changed)}; move it away to "
            "train anew"
        )


@contextlib.contextmanager
def _signals_as_ctrl_c() -> Iterator[None]:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    names = ("SIGTERM", "SIGHUP")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(workers: _Workers, futures: Sequence[Future[bool]]) -> None:
    while True:
        try:
            workers.stop()
            wait(futures)
            return
        except KeyboardInterrupt:
            continue


def _last_sentence(log: Path) -> str:
    """What the command said last, if that was why it failed."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return f" ({lines[-1]})" if lines and lines[-1].startswith("bighmm: ") else ""
