"""Training what a paper's tables lack: each run is `bighmm train` in a process of its own.

A run lies in runs/PAPER/NAME with its output beside it in NAME.log. What was begun before is
resumed, and what is finished is only written to results/PAPER/NAME.json. What the recipes begin
with is made before, one after the other. Processes run in the checkout, which is what the paths in
recipes are relative to.
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

from bighmm.base.files import read_json, write_json
from bighmm.lm import baselines
from bighmm.reproduce.prepare import named_in, needs, unprepared
from bighmm.reproduce.record import record_of
from bighmm.reproduce.results import result_files, run_name
from bighmm.reproduce.rows import Paper, Prepare, Row, Table
from bighmm.train.recipe import differences, from_dict, read_recipe

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
    begins_with: tuple[str, ...] = ()  # folders that its recipe names


@dataclass(frozen=True)
class Files:
    """Where the corpora are, and the tokenizers of those that need one."""

    data: dict[str, str]
    tokenizers: dict[str, str]

    def flags(self, corpus: str) -> tuple[str, ...]:
        tokenizer = self.tokenizers.get(corpus)
        return ("--data", self.data[corpus], *(("--tokenizer", tokenizer) if tokenizer else ()))


class Failed(Exception):
    """A run has no result; the text says why, or where to read it."""


class _Stopping(Exception):
    """There is no point in beginning anything more."""


def missing(paper: Paper, selected: Paper, seeds: Sequence[int] = ()) -> list[Job]:
    """The runs that the selected rows lack; a recipe that several of them share is run once.

    Without `seeds` a row is run with those of its table. Where that has none, it lacks a run if it
    has no result at all, and is then run with seed 1.
    Whether training text is evaluated is decided by all rows of the paper with that recipe.
    """
    with_train = {(row.recipe, row.corpus) for row in paper.rows if "train" in row.paper}
    jobs: dict[str, Job] = {}
    for table in selected.tables:
        for row in table.rows:
            for seed in _lacking(paper, table, row, seeds):
                name, recipe = run_name(row, seed), paper.recipe_file(row)
                train = (row.recipe, row.corpus) in with_train
                begins_with = tuple(named_in(recipe))
                jobs[name] = Job(name, recipe, row.corpus, seed, train, begins_with)
    return list(jobs.values())


def find_files(
    data: Sequence[str], tokenizers: Sequence[str], paper: Paper, jobs: Sequence[Job]
) -> Files:
    """From NAME=FOLDER the folder of each corpus, and from NAME=FILE its tokenizer.

    Paths become absolute, so that a run can be resumed from another folder. Python's documentation
    is found without being named. Raises ValueError unless all that the jobs need is there.
    """
    corpora = {row.corpus for row in paper.rows}
    used = {job.corpus for job in jobs}
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
    """What the jobs begin with and is not there yet; ValueError for what must be put by hand."""
    return unprepared(paper, (folder for job in jobs for folder in job.begins_with))


def run_jobs(paper: Paper, jobs: Sequence[Job], files: Files, at_once: int, say: Say) -> list[str]:
    """Make all runs, `at_once` at the same time, and return the names of those that failed.

    What they begin with is made first, and what needs something that could not be made fails. On
    Ctrl-C, SIGTERM or SIGHUP every run is asked once to save itself, a second time not to; when
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
    """What the threads do and share."""

    def __init__(self, paper: Paper, files: Files, at_once: int, say: Say) -> None:
        self.paper, self.files, self.at_once, self.say = paper, files, at_once, say
        self.not_made: set[str] = set()  # folders that were to be prepared
        self.lock = threading.Lock()
        self.processes: set[subprocess.Popen[bytes]] = set()
        self.stopping = False

    def prepare(self, entry: Prepare) -> bool:
        """Whether the folder of the entry is there now."""
        name = entry.makes.replace("/", "-")
        folder, log = self.paper.root / entry.makes, self.paper.runs / f"{name}.log"
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
        """Whether the run has a result now."""
        if self.stopping:
            return False
        run, log = self.paper.runs / job.name, self.paper.runs / f"{job.name}.log"
        try:
            self._require(job.begins_with)
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

    def _require(self, folders: Iterable[str]) -> None:
        for folder in folders:
            if folder in self.not_made:
                raise Failed(f"it needs {folder}, which could not be made")

    def _train(self, job: Job, run: Path, log: Path) -> None:
        settings = (*self.files.flags(job.corpus), "--seed", job.seed)
        paths = ("--recipe", job.recipe.absolute(), "--out", run.absolute())
        command = ("train", *paths, *settings)
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
        matmul_dtype = trained["recipe"]["training"]["matmul_dtype"]
        what = ("--data", self.files.data[job.corpus], "--split", "train")
        where = ("--device", trained["device"], "--matmul-dtype", matmul_dtype)
        return json.loads(self._call(("eval", run.absolute(), *what, *where, "--json"), log))

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


def _lacking(paper: Paper, table: Table, row: Row, seeds: Sequence[int]) -> list[int]:
    """The seeds that a row is still to be run with; counting is the same with every one."""
    if row.recipe is None:
        return []
    done, wanted = result_files(paper, row), seeds or table.seeds
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


def _check_same(job: Job, run: Path) -> None:
    """ValueError if a finished run was made from another recipe than the job has now."""
    path = run / "result.json"
    made = from_dict(read_json(path)["recipe"], str(path))
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
