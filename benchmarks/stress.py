"""Many processes on one cache, one run and one folder of labels, also killed at random moments.

    python benchmarks/stress.py
    python benchmarks/stress.py --processes 2 4 --repeats 5 --out /tmp/stress.json

In each repetition several processes do the same at the same time. Afterwards

- the folder is what a single process makes of it, byte for byte, times aside;
- every process that was not killed has ended with status 0 and the answer of a single process, or
  with status 2 and one sentence that says why; in a run, at most one has status 0;
- where processes were killed, the same command, started once more, finishes the work.

A process is killed (SIGKILL) just before an operation on files with a random number, or after a
random time. Processes are forked from a server that has imported the package, and call what the
commands call. `--commands` is the number of repetitions in which each is a command of its own.
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
BUSY, DONE = "is being written by another process", "already holds a run"


@dataclass(frozen=True)
class Arguments:
    processes: tuple[int, ...] = (2, 4, 8)
    """How many at the same time."""
    repeats: int = 50
    """Repetitions of each kind, without and with kills."""
    commands: int = 2
    """Repetitions of each kind with two commands."""
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
    operations: int = 0  # on files, if it ended well


@dataclass(frozen=True)
class Kind:
    """Something that several processes do at the same time."""

    name: str
    work: Callable[[Path, Path], dict[str, Any]]  # in a folder of the repetition, with a text
    command: str  # the same as a command; RUN and LABELS stand for folders
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

    def run(self, kind: Kind, folder: Path, deaths: Sequence[Death | None]) -> list[Ended]:
        """Start processes at the same time, one for each death, and wait for all of them."""
        together = self.context.Barrier(len(deaths))
        places = [self.home / f"process-{next(self.numbers)}" for _ in deaths]
        processes = []
        for death, place in zip(deaths, places, strict=True):
            place.mkdir()
            given = (kind.work, folder, self.text, place, together, death, self.flush)
            processes.append(self.context.Process(target=_process, args=given))
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        ended = []
        for process, place in zip(processes, places, strict=True):
            said = [(place / name).read_text(encoding="utf-8") for name in ("out", "err")]
            counted = place / "operations"
            operations = int(counted.read_text()) if counted.exists() else 0
            ended.append(Ended(process.exitcode or 0, *said, operations))
            shutil.rmtree(place)
        return ended

    def run_commands(self, kind: Kind, folder: Path, number: int) -> list[Ended]:
        """The same with commands."""
        code = "from bighmm.cli.main import main; main()"
        places = {"TEXT": self.text, "RUN": folder / "run", "LABELS": folder / "labels"}
        words = [str(places.get(word, word)) for word in kind.command.split()]
        environment = {**os.environ, "BIGHMM_CACHE": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
        started = [
            subprocess.Popen(
                [sys.executable, "-c", code, *words],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
            for _ in range(number)
        ]
        said = [process.communicate() for process in started]
        return [Ended(p.returncode, *s) for p, s in zip(started, said, strict=True)]


@dataclass(frozen=True)
class Death:
    """When a process is killed."""

    operation: int | None = None  # before its operation on files with this number
    seconds: float | None = None  # after so many


NEVER = Death(operation=1 << 62)


def _process(
    work: Callable[[Path, Path], dict[str, Any]],
    folder: Path,
    text: Path,
    place: Path,
    together: Any,
    death: Death | None,
    flush: bool,
) -> None:
    """Do something as a command does; what it prints, and a count of operations, go to `place`."""
    import torch

    from bighmm.cli.main import call

    os.environ["BIGHMM_CACHE"] = str(folder / "cache")
    torch.set_num_threads(1)
    if not flush:
        os.fsync = lambda descriptor: None
    out = (place / "out").open("w", encoding="utf-8", buffering=1)
    err = (place / "err").open("w", encoding="utf-8", buffering=1)
    together.wait()
    counted = _arrange(death) if death is not None else []
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        call(lambda: print(json.dumps(work(folder, text))))
    if death == NEVER:
        (place / "operations").write_text(str(len(counted)))


def _arrange(death: Death) -> list[str]:
    """Arrange for the end of this process; returns a list that grows with its operations."""
    counted: list[str] = []

    def die() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def count(event: str, _: object) -> None:
        if event in OPERATIONS:
            counted.append(event)
            if death.operation is not None and len(counted) >= death.operation:
                die()

    sys.addaudithook(count)
    if death.seconds is not None:
        timer = threading.Timer(death.seconds, die)
        timer.daemon = True
        timer.start()
    return counted


def _describe(folder: Path, text: Path) -> dict[str, Any]:
    from bighmm.data.corpus import describe, prepare

    return describe(prepare(text))


def _train(folder: Path, text: Path) -> dict[str, Any]:
    from bighmm.train.recipe import from_dict
    from bighmm.train.run import train_run

    settings = {
        "corpus": {"data": str(text)},
        "model": {"states": 4, "support": "dense", "parameterisation": "scalar"},
        "training": {
            **{"batch": 4, "window": 8, "epochs": 0.2, "state_dropout": 0.0, "device": "cpu"}
        },
    }
    run = folder / "run"
    resume = (run / "recipe.json").exists() and not (run / "result.json").exists()
    return train_run(run, from_dict(settings, "the recipe"), resume=resume)


def _label(folder: Path, text: Path) -> dict[str, Any]:
    from bighmm.distill.corpus_labels import label_corpus
    from bighmm.distill.labelling import LabelSettings
    from bighmm.train.recipe import CorpusSettings, ModelSettings

    made = label_corpus(
        "random",
        CorpusSettings(data=str(text)),
        ModelSettings(states=3, support="dense"),
        LabelSettings(cluster_tokens=200, label_tokens=300),
        out=folder / "labels",
    )
    return made.manifest


DATA = "data --data TEXT --json"
TRAIN = (
    "train --data TEXT --support dense --parameterisation scalar --states 4 --batch 4 --window 8 "
    "--epochs 0.2 --state-dropout 0 --device cpu --json --out RUN"
)
LABEL = (
    "distill random --data TEXT --states 3 --cluster-tokens 200 --label-tokens 300 --device cpu "
    "--json --out LABELS"
)


def kinds() -> list[Kind]:
    """What is done at the same time."""
    return [
        Kind("empty cache", _describe, DATA, _empty_cache, _corpora, _described),
        Kind("damaged cache", _describe, DATA, _damaged_cache, _corpora, _described),
        Kind("run", _train, TRAIN, _nothing, _run_left, _figures, one_winner=True),
        Kind("labels", _label, LABEL, _nothing, _labels_left, _labels_answer),
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
    return {k: value for k, value in json.loads(out).items() if k not in ("folder", "version")}


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
    manifest["result"]["seconds"] = manifest["seal"] = 0  # which depends on it
    beside = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    return [_contents(labels, ("manifest.json",)), manifest, beside]


def _labels_answer(out: str) -> Any:
    found = json.loads(out)
    found["result"]["seconds"] = 0
    return [found[name] for name in ("teacher", "states", "tokens", "settings", "result")]


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
            (ended,) = stress.run(kind, folder, [NEVER])
            seconds = time.perf_counter() - began
            assert ended.status == 0, ended.err
            self.alone = Alone(kind.left(folder), kind.answer(ended.out), ended.operations, seconds)

    def together(self, processes: int, tally: Tally, commands: bool = False) -> None:
        """One repetition in which nothing is killed."""
        with self._folder() as folder:
            if commands:
                ended = self.stress.run_commands(self.kind, folder, processes)
            else:
                ended = self.stress.run(self.kind, folder, [None] * processes)
            failed = self._wrong(ended, tally)
            if not any(end.status == 0 for end in ended):
                failed.append("none has done it")
            elif not failed and self.kind.left(folder) != self.alone.left:
                failed.append("the folder is not that of a single process")
            self._report(failed, ended, tally)

    def killed(self, processes: int, tally: Tally, draw: random.Random) -> None:
        """One repetition: twice some are killed, and then one is left alone."""
        with self._folder() as folder:
            failed: list[str] = []
            every: list[Ended] = []
            for share in (1.0, 0.5):
                deaths = [self._death(draw, share) for _ in range(processes)]
                ended = self.stress.run(self.kind, folder, deaths)
                every += ended
                failed += self._wrong(ended, tally)
            (last,) = self.stress.run(self.kind, folder, [None])
            every.append(last)
            failed += self._wrong([last], tally)
            if BUSY in last.err:
                failed.append("a lock has outlived its holder")
            elif not failed and self.kind.left(folder) != self.alone.left:
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

    def _death(self, draw: random.Random, share: float) -> Death | None:
        """The death of such a share of the processes, of half of them by the clock.

        A process that is refused ends before it, since it does little.
        """
        if draw.random() >= share:
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
                *notes, last = end.err.splitlines() or [""]  # notes: what was chosen, before it
                one = last.startswith("bighmm: ") and not any("bighmm: " in note for note in notes)
                if not (one and (BUSY in end.err or DONE in end.err)):
                    failed.append("a refusal that is not one sentence")
            elif end.status != -signal.SIGKILL:
                failed.append(f"status {end.status}")
        if self.kind.one_winner and sum(end.status == 0 for end in ended) > 1:
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
    draw = random.Random(arguments.seed)
    rows = []
    (ended,) = server.run(kinds()[0], home, [None])  # fills the cache
    assert ended.status == 0, ended.err
    for kind in kinds():
        trial = Trial(server, kind, cache)
        modes: list[tuple[str, int, int, Callable[[int, Tally], None]]] = []
        for n in arguments.processes:
            modes.append(("together", n, arguments.repeats, trial.together))
            modes.append(
                ("killed", n, arguments.repeats, lambda n, t, go=trial.killed: go(n, t, draw))
            )
        modes.append(
            ("commands", 2, arguments.commands, lambda n, t, go=trial.together: go(n, t, True))
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
