"""Runs that the tables of a paper lack: each is `bighmm train` in a process of its own.

The run NAME is trained in runs/PAPER/NAME with its output in NAME.log. An interrupted run is
resumed; a finished one is not trained again, only its result is stored. Folders that recipes refer
to are made first, one after the other. The processes run in the checkout, since paths in recipes
are relative to it. Each name is locked: several of these programs can run at the same time, as long
as they do not make the same thing.
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bighmm.base.json_files import read_json
from bighmm.base.locks import locked_name
from bighmm.lm import baselines
from bighmm.train.recipe import differences, from_saved, located, read_recipe
from papers.prepare import named_in, needs, unprepared
from papers.record import record_of
from papers.results import Results, run_name, store_result
from papers.rows import Paper, Prepare, Row, Table

# With -P nothing is imported from the folder in which the process runs.
BIGHMM = (sys.executable, "-P", "-c", "from bighmm.cli.main import main; main()")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """One run to train."""

    name: str
    row: Row
    recipe: Path
    seed: int
    evaluates_train: bool  # whether to compute perplexity on the training text too
    needs: tuple[str, ...] = ()  # folders that its recipe refers to


@dataclass(frozen=True)
class Files:
    """Paths of corpora, and of the tokenizers of those that need one."""

    data: dict[str, str]
    tokenizers: dict[str, str]

    def flags(self, corpus: str) -> tuple[str, ...]:
        """The flags of `bighmm train` for a corpus."""
        tokenizer = self.tokenizers.get(corpus)
        return ("--data", self.data[corpus], *(("--tokenizer", tokenizer) if tokenizer else ()))


class Failed(Exception):
    """A run has no result; the message says why, or which log says it."""


class _Stopping(Exception):
    """The user has interrupted the program."""


def missing(
    paper: Paper, selected: Paper, results: Results, seeds: Sequence[int] = ()
) -> list[Job]:
    """The runs that the selected rows lack, one for rows with the same recipe, corpus and seed.

    A row is run with `seeds`, else with those of its table. Where there are none, a row without any
    result is run with seed 1. The training text is evaluated if any row of the paper with that
    recipe and corpus has a figure of it.
    """
    with_train = {(row.recipe, row.corpus) for row in paper.rows if "train" in row.paper}
    jobs: dict[str, Job] = {}
    for table in selected.tables:
        for row in table.rows:
            for seed in _lacking(paper, results, table, row, seeds):
                name, recipe = run_name(row, seed), paper.recipe_file(row)
                train = (row.recipe, row.corpus) in with_train
                jobs[name] = Job(name, row, recipe, seed, train, tuple(named_in(recipe)))
    return list(jobs.values())


def find_files(
    data: Sequence[str], tokenizers: Sequence[str], paper: Paper, jobs: Sequence[Job]
) -> Files:
    """The corpora of arguments NAME=FOLDER and the tokenizers of arguments NAME=FILE.

    Paths become absolute, so that a run can be resumed from another folder. The corpus pydoc needs
    no argument. Raises ValueError if something is missing that the jobs need.
    """
    corpora = {row.corpus for row in paper.rows}
    used = {job.row.corpus for job in jobs}
    found = {"pydoc": "pydoc"} if "pydoc" in corpora else {}
    found |= _named_paths(data, "data", "FOLDER", corpora, paper)
    files = _named_paths(tokenizers, "tokenizer", "FILE", set(paper.tokenizers), paper)
    for flag, what, lacking in (
        ("data", "FOLDER", used - set(found)),
        ("tokenizer", "FILE", used & set(paper.tokenizers) - set(files)),
    ):
        if lacking:
            names = " and ".join(sorted(lacking))
            needed = names if flag == "data" else f"the tokenizer of {names}"
            flags = " ".join(f"--{flag} {name}={what}" for name in sorted(lacking))
            raise ValueError(f"training needs {needed}; say where with {flags}")
    return Files(found, files)


def to_prepare(paper: Paper, jobs: Sequence[Job]) -> list[Prepare]:
    """The entries of [[prepare]] to make before the jobs.

    Raises ValueError if a folder is missing that the user has to provide.
    """
    return unprepared(paper, (folder for job in jobs for folder in job.needs))


@contextlib.contextmanager
def reserved(paper: Paper, jobs: Sequence[Job]) -> Iterator[None]:
    """Context in which no other process makes these runs, or the folders that they need.

    Raises ValueError if another process makes one of them.
    """
    names = [_name(entry) for entry in to_prepare(paper, jobs)] + [job.name for job in jobs]
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(locked_name(paper.runs / name))
        yield


def run_jobs(paper: Paper, jobs: Sequence[Job], files: Files, at_once: int, say: Say) -> list[str]:
    """Train all runs, `at_once` at the same time, and return the names of those that failed.

    Folders that they need are made first; a run fails if one of its folders could not be made. On
    Ctrl-C, SIGTERM or SIGHUP every run saves itself and stops, on a second one without saving. When
    all have ended, KeyboardInterrupt is raised.
    """
    workers = _Workers(paper, files, at_once, say)
    futures: list[Future[bool]] = []
    with ThreadPoolExecutor(at_once) as threads, _signals_as_ctrl_c():
        try:
            for entry in to_prepare(paper, jobs):
                futures.append(threads.submit(workers.prepare, entry))
                wait(futures)
            futures = [threads.submit(workers.make, job) for job in jobs]
            wait(futures)
        except KeyboardInterrupt:
            say("stopping; every run saves itself first, once more to stop without that")
            _stop(workers, futures)
            raise
    return [job.name for job, future in zip(jobs, futures, strict=True) if not future.result()]


class _Workers:
    """The work of the threads, and the state that they share."""

    def __init__(self, paper: Paper, files: Files, at_once: int, say: Say) -> None:
        self.paper, self.files, self.at_once, self.say = paper, files, at_once, say
        self.not_made: set[str] = set()  # folders that could not be made
        self.lock = threading.Lock()
        self.processes: set[subprocess.Popen[bytes]] = set()
        self.stopping = False

    def prepare(self, entry: Prepare) -> bool:
        """Make the folder of an entry; whether it succeeded."""
        folder, log = self.paper.root / entry.makes, self.paper.runs / f"{_name(entry)}.log"
        words = shlex.split(entry.command or "")
        if entry.corpus is not None:
            words += self.files.flags(entry.corpus)
        if (folder / "recipe.json").exists():  # a run that was interrupted
            words.append("--resume")
        try:
            self._require(other.makes for other in needs(entry, self.paper))
            self.say(f"{entry.makes}: being made")
            self._call((*words, "--out", folder.absolute()), log)
        except _Stopping:
            return False
        except (Failed, OSError) as error:
            self.not_made.add(entry.makes)
            self.say(f"{entry.makes}: failed; {error}")
            return False
        self.say(f"{entry.makes}: made")
        return True

    def make(self, job: Job) -> bool:
        """Train a run and store its result; whether it succeeded."""
        if self.stopping:
            return False
        run, log = self.paper.runs / job.name, self.paper.runs / f"{job.name}.log"
        try:
            self._require(job.needs)
            self._train(job, run, log)
            result = record_of(run)
            result["recipe"]["corpus"]["data"] = job.row.corpus
            result["at_once"] = self.at_once  # runs at the same time make each other slower
            if job.evaluates_train:
                result["train"] = self._evaluate_train(job, run, log)
            store_result(self.paper, job.row, job.seed, result)
        except _Stopping:
            return False
        except (Failed, OSError, ValueError) as error:
            self.say(f"{job.name}: failed; {error}")
            return False
        figures = [f"{split} {result[split]['perplexity']:.1f}" for split in ("valid", "test")]
        self.say(f"{job.name}: finished; {', '.join(figures)}, {result['seconds']:,.1f} s")
        return True

    def stop(self) -> None:
        """Ask all processes to end, and start no others."""
        with self.lock:
            self.stopping = True
            for process in self.processes:
                process.terminate()

    def _require(self, folders: Iterable[str]) -> None:
        for folder in folders:
            if folder in self.not_made:
                raise Failed(f"it needs {folder}, which could not be made")

    def _train(self, job: Job, run: Path, log: Path) -> None:
        settings = (*self.files.flags(job.row.corpus), "--seed", job.seed)
        paths = ("--recipe", job.recipe.absolute(), "--out", run.absolute())
        command = ("train", *paths, *settings)
        if (run / "result.json").exists():
            _check_same(job, run, self.paper.root)
            self.say(f"{job.name}: was trained before")
        elif (run / "recipe.json").exists():
            self.say(f"{job.name}: goes on")
            self._call((*command, "--resume"), log)
        else:
            self.say(f"{job.name}: started")
            self._call(command, log)

    def _evaluate_train(self, job: Job, run: Path, log: Path) -> dict[str, Any]:
        """Perplexity of the best model on the training text, on the device of its training."""
        trained = read_json(run / "result.json")
        matmul_dtype = trained["recipe"]["training"]["matmul_dtype"]
        what = ("--data", self.files.data[job.row.corpus], "--split", "train")
        where = ("--device", trained["device"], "--matmul-dtype", matmul_dtype)
        return json.loads(self._call(("eval", run.absolute(), *what, *where, "--json"), log))

    def _call(self, arguments: Sequence[object], log: Path) -> bytes:
        """Run a command of bighmm and return its JSON; all other output goes to the log."""
        words = [str(word) for word in arguments]
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            file.write(f"$ bighmm {shlex.join(words)}\n".encode())
            file.flush()
            with self.lock:
                if self.stopping:
                    raise _Stopping
                # In its own group the process gets our signal, and not the terminal's Ctrl-C too.
                process = subprocess.Popen(
                    [*BIGHMM, *words],
                    cwd=self.paper.root,
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


def _name(entry: Prepare) -> str:
    return entry.makes.replace("/", "-")


def _lacking(
    paper: Paper, results: Results, table: Table, row: Row, seeds: Sequence[int]
) -> list[int]:
    """The seeds that a row has no result of; models without training have one run."""
    if not row.can_run:
        return []
    done, wanted = results.of(row), seeds or table.seeds
    if not wanted and done:
        return []
    family = read_recipe(paper.recipe_file(row)).model.family
    if not wanted or (family != "hmm" and baselines.find(family).fit is not None):
        wanted = (1,)
    return [seed for seed in wanted if seed not in done]


def _named_paths(
    given: Sequence[str], flag: str, what: str, known: set[str], paper: Paper
) -> dict[str, str]:
    found = {}
    for word in given:
        name, equals, path = word.partition("=")
        if not (equals and path):
            raise ValueError(f"--{flag} {word} is not of the form NAME={what}")
        if name not in known:
            thing = "corpus" if flag == "data" else "tokenizer for"
            choice = f"choose from {', '.join(sorted(known))}" if known else f"leave out --{flag}"
            raise ValueError(f"{paper.name} uses no {thing} {name!r}; {choice}")
        if (flag, path) != ("data", "pydoc"):
            path = os.path.abspath(os.path.expanduser(path))
            if not os.path.exists(path):
                thing = "corpus" if flag == "data" else "tokenizer"
                raise ValueError(f"there is no {thing} {path} as --{flag} {name}=… says")
        found[name] = path
    return found


def _check_same(job: Job, run: Path, root: Path) -> None:
    """Raises ValueError if a finished run has other settings than the recipe of the job.

    root: the checkout, in which it was trained.
    """
    path = run / "result.json"
    made = located(from_saved(read_json(path)["recipe"], str(path)), root)
    recipe = read_recipe(job.recipe)
    asked = dataclasses.replace(
        recipe,
        corpus=dataclasses.replace(
            recipe.corpus,
            data=made.corpus.data,
            tokenizer=recipe.corpus.tokenizer or made.corpus.tokenizer,
        ),
        training=dataclasses.replace(recipe.training, seed=job.seed),
    )
    if changed := differences(made, located(asked, root)):
        raise ValueError(
            f"{run} holds a run with another configuration: {', '.join(changed)}; move it away to "
            "train anew"
        )


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


def _stop(workers: _Workers, futures: Sequence[Future[bool]]) -> None:
    while True:
        try:
            workers.stop()
            wait(futures)
            return
        except KeyboardInterrupt:
            continue


def _last_sentence(log: Path) -> str:
    """The error message of a command in its log, in brackets; empty if it printed none."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return f" ({lines[-1]})" if lines and lines[-1].startswith("bighmm: ") else ""
