"""Many processes on one cache, one run and one folder of labels, also killed at random moments.

    python benchmarks/stress.py
    python benchmarks/stress.py --processes 2 4 --repeats 5 --out /tmp/stress.json

In each repetition several processes do the same at the same time. Afterwards

- the folder is what a single process makes of it, byte for byte, times aside;
- every process that was not killed has ended with status 0 and the answer of a single process, or
  with status 2 and one sentence that says why; in a run, at most one has status 0;
- where processes were killed, the same command, started once more, finishes the work.

A process is killed (SIGKILL) just before an operation on files with a random number, or after a
random time. They are forked from a server that has imported the package; with `--fresh` that many
repetitions of each kind start an interpreter for every process instead.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import tyro

from record import save, surroundings

OPERATIONS = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "fcntl.flock"}
REFUSALS = ("is being written by another process", "already holds a run")


@dataclass(frozen=True)
class Arguments:
    processes: tuple[int, ...] = (2, 4, 8)
    """How many at the same time."""
    repeats: int = 50
    """Repetitions of each kind, without and with kills."""
    fresh: int = 1
    """Repetitions of each kind, with two processes, that start an interpreter for each."""
    flush: bool = True
    """Whether files are flushed to the disk, as they are in use."""
    seed: int = 1
    out: str = "bench/stress.json"
    """File for the figures, under results/."""


@dataclass(frozen=True)
class Ended:
    """How a process ended."""

    status: int  # below 0: by a signal
    out: str
    err: str


@dataclass(frozen=True)
class Kind:
    """Something that several processes do at the same time."""

    name: str
    command: Callable[[Path], Sequence[str]]  # in a folder of the repetition
    prepare: Callable[[Path], None]  # the folder, before they start
    left: Callable[[Path], Any]  # what is in it afterwards
    answer: Callable[[str], Any]  # the answer of a process, from its output
    one_winner: bool = False  # whether at most one process has status 0


@dataclass
class Tally:
    """What the repetitions of a kind have shown."""

    statuses: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


class Stress:
    """The server that processes are forked from, and a text for them."""

    def __init__(self, home: Path, flush: bool) -> None:
        self.home, self.flush = home, flush
        self.context = multiprocessing.get_context("forkserver")
        # AdamW imports torch._dynamo when it is first used.
        modules = ["torch._dynamo", "bighmm.cli.train", "bighmm.cli.corpora", "bighmm.cli.distill"]
        modules += ["bighmm.train.run", "bighmm.distill.corpus_labels", "rich.table"]
        self.context.set_forkserver_preload(modules)
        draw = random.Random(0)
        lines = [" ".join(f"w{draw.randrange(12):02}" for _ in range(6)) for _ in range(60)]
        self.text = home / "text.txt"
        self.text.write_text("\n".join(lines) + "\n", encoding="utf-8")
        self.numbers = iter(range(1 << 62))

    def run(
        self, commands: Sequence[Sequence[str]], deaths: Sequence[Death | None], cache: Path
    ) -> list[Ended]:
        """Start commands at the same time and wait for all of them."""
        together = self.context.Barrier(len(commands))
        folders = [self.home / f"process-{next(self.numbers)}" for _ in commands]
        processes = []
        for command, death, folder in zip(commands, deaths, folders, strict=True):
            folder.mkdir()
            given = (list(command), folder, cache, together, death, self.flush)
            processes.append(self.context.Process(target=_process, args=given))
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        ended = []
        for process, folder in zip(processes, folders, strict=True):
            said = [(folder / name).read_text(encoding="utf-8") for name in ("out", "err")]
            ended.append(Ended(process.exitcode or 0, *said))
            shutil.rmtree(folder)
        return ended

    def run_fresh(self, commands: Sequence[Sequence[str]], cache: Path) -> list[Ended]:
        """The same with an interpreter for each command."""
        code = "from bighmm.cli.main import main; main()"
        environment = {**os.environ, "BIGHMM_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
        started = [
            subprocess.Popen(
                [sys.executable, "-c", code, *command],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for command in commands
        ]
        said = [process.communicate() for process in started]
        return [Ended(p.returncode, *s) for p, s in zip(started, said, strict=True)]


@dataclass(frozen=True)
class Death:
    """When a process is killed."""

    operation: int | None = None  # before its operation on files with this number
    seconds: float | None = None  # after so many


def _process(
    argv: list[str],
    folder: Path,
    cache: Path,
    together: Any,
    death: Death | None,
    flush: bool,
) -> None:
    import torch

    from bighmm.cli.main import main

    os.environ["BIGHMM_CACHE"] = str(cache)
    torch.set_num_threads(1)
    if not flush:
        os.fsync = lambda descriptor: None
    out = (folder / "out").open("w", encoding="utf-8", buffering=1)
    err = (folder / "err").open("w", encoding="utf-8", buffering=1)
    together.wait()
    if death is not None:
        _arrange(death)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        main(argv)


def _arrange(death: Death) -> None:
    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if death.seconds is not None:
        timer = threading.Timer(death.seconds, die)
        timer.daemon = True
        timer.start()
        return
    left = [death.operation or 0]

    def count(event: str, _: object) -> None:
        if event in OPERATIONS:
            left[0] -= 1
            if left[0] <= 0:
                die()

    sys.addaudithook(count)


def kinds(text: Path) -> list[Kind]:
    """What is done at the same time."""
    small = "--support dense --parameterisation scalar --states 4 --batch 4 --window 8"
    train = f"train --data {text} {small} --epochs 0.2 --state-dropout 0 --device cpu --json"
    labels = f"distill random --data {text} --states 3 --cluster-tokens 200 --label-tokens 300"
    data = ["data", "--data", str(text), "--json"]

    def goes_on(folder: Path) -> list[str]:
        run = folder / "run"
        if (run / "recipe.json").exists():
            return ["train", "--resume", "--out", str(run), "--json"]
        return [*train.split(), "--out", str(run)]

    return [
        Kind("empty cache", lambda _: data, _empty_cache, _corpora, _described),
        Kind("damaged cache", lambda _: data, _damaged_cache, _corpora, _described),
        Kind("run", goes_on, _nothing, _run_left, _figures, one_winner=True),
        Kind(
            "labels",
            lambda folder: [*labels.split(), "--json", "--out", str(folder / "labels")],
            _nothing,
            _labels_left,
            _labels_answer,
        ),
    ]


def _nothing(folder: Path) -> None:
    """The cache is whole and there is nothing else."""


def _empty_cache(folder: Path) -> None:
    shutil.rmtree(folder / "cache")


def _damaged_cache(folder: Path) -> None:
    (corpus,) = (folder / "cache").iterdir()
    (corpus / "train.bin").write_bytes(b"?")


def _contents(folder: Path, without: Sequence[str] = ()) -> dict[str, str]:
    """The files of a folder, except some that hold times."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes().hex()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in without
    }


def _corpora(folder: Path) -> Any:
    """The corpora of the cache; what killed processes left is removed with the next one."""
    found = _contents(folder / "cache")
    whole = lambda name: not name.startswith(".") and ".previous/" not in name  # noqa: E731
    return {name: content for name, content in found.items() if whole(name)}


def _described(out: str) -> Any:
    return {name: value for name, value in json.loads(out).items() if name != "folder"}


def _run_left(folder: Path) -> Any:
    run = folder / "run"
    lines = (run / "log.jsonl").read_text(encoding="utf-8").splitlines()
    log = [{**json.loads(line), "seconds": 0} for line in lines]
    without = ("log.jsonl", "result.json", "state.json", "manifest.json", "recipe.json")
    names = sorted(path.name for path in run.iterdir())
    figures = _figures((run / "result.json").read_text(encoding="utf-8"))
    return [names, _contents(run, without), log, figures]


def _figures(out: str) -> Any:
    result = json.loads(out)
    return [result[name] for name in ("valid", "test", "samples", "steps")]


def _labels_left(folder: Path) -> Any:
    labels = folder / "labels"
    manifest = json.loads((labels / "manifest.json").read_text(encoding="utf-8"))
    manifest["result"]["seconds"] = 0
    beside = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    return [_contents(labels, ("manifest.json",)), manifest, beside]


def _labels_answer(out: str) -> Any:
    found = json.loads(out)
    found["result"]["seconds"] = 0
    return {name: value for name, value in found.items() if name != "folder"}


@dataclass(frozen=True)
class Alone:
    """What a single process does."""

    left: Any
    answer: Any
    operations: int  # on files
    seconds: float


class Trial:
    """Repetitions of one kind."""

    def __init__(self, stress: Stress, kind: Kind, cache: Path) -> None:
        self.stress, self.kind, self.cache = stress, kind, cache
        with self._folder() as folder:
            began = time.perf_counter()
            (ended,) = stress.run([kind.command(folder)], [None], folder / "cache")
            seconds = time.perf_counter() - began
            assert ended.status == 0, ended.err
            self.alone = Alone(kind.left(folder), kind.answer(ended.out), 0, seconds)
        self.alone = Alone(
            self.alone.left, self.alone.answer, self._count_operations(), self.alone.seconds
        )

    def together(self, processes: int, tally: Tally, fresh: bool = False) -> None:
        """One repetition in which nothing is killed."""
        with self._folder() as folder:
            commands, cache = [self.kind.command(folder)] * processes, folder / "cache"
            if fresh:
                ended = self.stress.run_fresh(commands, cache)
            else:
                ended = self.stress.run(commands, [None] * processes, cache)
            failed = self._wrong(ended, tally)
            if not any(end.status == 0 for end in ended):
                failed.append("none has done it")
            elif self.kind.left(folder) != self.alone.left:
                failed.append("the folder is not that of a single process")
            self._report(failed, ended, tally)

    def killed(self, processes: int, tally: Tally, draw: random.Random) -> None:
        """One repetition: twice some are killed, and then one is left alone."""
        with self._folder() as folder:
            failed: list[str] = []
            every: list[Ended] = []
            for _ in range(2):
                deaths = [self._death(draw) for _ in range(processes)]
                commands = [self.kind.command(folder)] * processes
                ended = self.stress.run(commands, deaths, folder / "cache")
                every += ended
                failed += self._wrong(ended, tally)
            (last,) = self.stress.run([self.kind.command(folder)], [None], folder / "cache")
            every.append(last)
            if last.status != 0:
                failed.append("it could not be finished")
            elif self.kind.left(folder) != self.alone.left:
                failed.append("the folder is not that of a single process")
            self._report(failed, every, tally)

    @contextlib.contextmanager
    def _folder(self) -> Any:
        """A new folder with a cache, as the processes find it."""
        folder = self.stress.home / f"trial-{next(self.stress.numbers)}"
        folder.mkdir()
        shutil.copytree(self.cache, folder / "cache")
        self.kind.prepare(folder)
        yield folder
        shutil.rmtree(folder)

    def _count_operations(self) -> int:
        """By bisection: the first number at which a single process is not killed."""
        low, high = 0, 1
        while self._dies_at(high):
            low, high = high, 2 * high
        while high - low > 1:
            middle = (low + high) // 2
            if self._dies_at(middle):
                low = middle
            else:
                high = middle
        return low

    def _dies_at(self, number: int) -> bool:
        with self._folder() as folder:
            death = Death(operation=number)
            (ended,) = self.stress.run([self.kind.command(folder)], [death], folder / "cache")
            return ended.status == -signal.SIGKILL

    def _death(self, draw: random.Random) -> Death | None:
        """Every second process is killed, every second of these by the clock."""
        if draw.random() < 0.5:
            return None
        if draw.random() < 0.5:
            return Death(seconds=draw.random() * self.alone.seconds)
        return Death(operation=draw.randint(1, self.alone.operations))

    def _wrong(self, ended: Sequence[Ended], tally: Tally) -> list[str]:
        """What is wrong with the ends of processes."""
        failed = []
        for end in ended:
            tally.statuses["killed" if end.status == -signal.SIGKILL else str(end.status)] += 1
            if end.status == 0:
                try:
                    same = self.kind.answer(end.out) == self.alone.answer
                except ValueError:
                    same = False
                if not same:
                    failed.append("another answer")
            elif end.status == 2:
                one = end.err.startswith("bighmm: ") and end.err.count("\n") == 1
                if not (one and any(reason in end.err for reason in REFUSALS)):
                    failed.append("a refusal that is not one sentence")
            elif end.status != -signal.SIGKILL:
                failed.append(f"status {end.status}")
        # A run that is finished may be resumed, so a second one may end well after a kill.
        killed = any(end.status < 0 for end in ended)
        if self.kind.one_winner and not killed and sum(end.status == 0 for end in ended) > 1:
            failed.append("two have trained in one folder")
        return failed

    def _report(self, failed: list[str], ended: Sequence[Ended], tally: Tally) -> None:
        tally.failures += failed
        if failed:
            print(f"{self.kind.name}: {'; '.join(failed)}", file=sys.stderr)
            for end in ended:
                print(f"  status {end.status}: {end.err.strip()[-2000:]}", file=sys.stderr)


def stress(arguments: Arguments, home: Path) -> list[dict[str, Any]]:
    """All repetitions; a row for each kind and number of processes."""
    server = Stress(home, arguments.flush)
    cache = home / "cache"
    (ended,) = server.run([["data", "--data", str(server.text), "--json"]], [None], cache)
    assert ended.status == 0, ended.err
    draw = random.Random(arguments.seed)
    rows = []
    for kind in kinds(server.text):
        trial = Trial(server, kind, cache)
        modes: list[tuple[str, int, int, Callable[[int, Tally], None]]] = []
        for n in arguments.processes:
            modes.append(("together", n, arguments.repeats, trial.together))
            modes.append(
                ("killed", n, arguments.repeats, lambda n, t, go=trial.killed: go(n, t, draw))
            )
        modes.append(
            ("fresh", 2, arguments.fresh, lambda n, t, go=trial.together: go(n, t, fresh=True))
        )
        for mode, n, repeats, repeat in modes:
            began, tally = time.perf_counter(), Tally()
            for _ in range(repeats):
                repeat(n, tally)
            row = {
                "operation": "stress",
                "kind": kind.name,
                "mode": mode,
                "processes": n,
                "repeats": repeats,
                "statuses": dict(sorted(tally.statuses.items())),
                "file_operations_alone": trial.alone.operations,
                "failures": tally.failures,
                "seconds": round(time.perf_counter() - began, 1),
            }
            rows.append(row)
            print(f"{kind.name}, {mode}, {n}: {row['statuses']}, {row['seconds']} s", flush=True)
    return rows


def main(arguments: Arguments) -> None:
    with tempfile.TemporaryDirectory() as home:
        rows = stress(arguments, Path(home))
    settings = {name: value for name, value in asdict(arguments).items() if name != "out"}
    found = {"settings": settings, "rows": rows, **surroundings()}
    failures = sum(len(row["failures"]) for row in rows)
    print(f"{failures} failures; saved to {save(arguments.out, found)}")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main(tyro.cli(Arguments))
