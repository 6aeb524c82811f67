"""Cases that run in processes of their own, with limits, and what became of each.

A case is forked from this process, which has everything loaded, so that it costs milliseconds and
leaves nothing behind. The limits are of processor time, which other programs do not change, and of
memory beyond what this process has. A case that sleeps for long waits for something that never
comes, such as the other end of a pipe.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import random
import resource
import selectors
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 10.0  # of processor time
WAITING = 10.0  # by the clock, asleep, for a case that waits for something
TICK = 1.0  # seconds between two looks at a case
MEMORY = 1 << 30  # bytes of address space beyond those of this process
LARGEST_FILE = 1 << 28
LONGEST_SENTENCE = 4000


# Answers that are others than before, and may be, with the reason.
DIFFERENT = {
    "forged": "files of a saved folder were changed and all its hashes made to fit, so it is "
    "another folder, which is whole; its probabilities are checked",
    "other input": "a file that a user writes, such as an ARPA file or a tokenizer, has another "
    "content, which is possible",
}


class Refused(Exception):
    """A command refused with one sentence and status 2."""


class Failure(Exception):
    """An outcome that is neither the same answer nor one sentence."""


@dataclass(frozen=True)
class Case:
    """Case `number` of a kind of attack; its random numbers follow from these three."""

    kind: str
    seed: int
    number: int

    def random(self) -> random.Random:
        return random.Random(f"{self.kind} {self.seed} {self.number}")

    def command(self) -> str:
        """What repeats the case."""
        return f"python -m tests.fuzz --only {self.kind} --seed {self.seed} --case {self.number}"


@dataclass(frozen=True)
class Outcome:
    """What became of a case."""

    status: str  # same, one of `DIFFERENT`, refused or failed
    doing: str  # what the case did
    said: str = ""  # the sentence, or why it failed
    where: str = ""  # the end of the traceback
    seconds: float = 0.0  # of processor time

    @property
    def failed(self) -> bool:
        return self.status == "failed"


Say = Callable[[str], None]
Work = Callable[[Case, random.Random, Path, Say], str]
"""Runs a case in an empty folder, says what it does before it does it, and returns its status.

It raises ValueError or `Refused` for a refusal, and anything else for a failure.
"""


def run_cases(
    cases: Iterable[Case], work: Work, place: Path, jobs: int = 1
) -> Iterator[tuple[Case, Outcome]]:
    """The outcomes of cases, as they end; at most `jobs` run at a time.

    place: a folder for the files of the cases, each in a folder of its own that is removed.
    """
    waiting = iter(cases)
    living: dict[int, _Child] = {}
    with selectors.DefaultSelector() as selector:
        try:
            while True:
                while len(living) < jobs and (case := next(waiting, None)) is not None:
                    child = _Child.start(case, work, place)
                    living[child.pipe] = child
                    selector.register(child.pipe, selectors.EVENT_READ)
                if not living:
                    return
                for key, _ in selector.select(timeout=TICK):
                    child = living[int(key.fd)]
                    if not child.read():
                        selector.unregister(child.pipe)
                        del living[child.pipe]
                        yield child.case, child.end()
                for child in living.values():
                    child.watch()
        finally:
            for child in living.values():
                child.kill()
                child.end()


@dataclass
class _Child:
    """A process that runs one case."""

    case: Case
    pid: int
    pipe: int
    folder: Path
    content: bytes = b""
    killed: bool = False
    seen: str = ""  # its use of the processor when it was last watched
    watched: float = 0.0  # when that was
    asleep: float = 0.0  # seconds since it did anything

    @staticmethod
    def start(case: Case, work: Work, place: Path) -> _Child:
        folder = place / f"{case.kind}-{case.seed}-{case.number}"
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "work").mkdir(parents=True)
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(reading)
                _run(case, work, folder, writing)
            finally:
                os._exit(0)
        os.close(writing)
        return _Child(case, pid, reading, folder)

    def read(self) -> bool:
        """Read what the process has written; False once it has ended."""
        found = os.read(self.pipe, 1 << 16)
        self.content += found
        return bool(found)

    def watch(self) -> None:
        """Kill the process if it has been asleep for long."""
        # After the name, in parentheses: the state, and further on the times in user and system.
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        used, now = " ".join(fields[11:13]), time.monotonic()
        if fields[0] in "RDTt" or used != self.seen:  # it runs, or is kept from running
            self.asleep = 0.0
        else:  # at most so much at once, as this process may have been stopped meanwhile
            self.asleep += min(now - self.watched, 2 * TICK)
        self.seen, self.watched = used, now
        if self.asleep > WAITING:
            self.kill()

    def kill(self) -> None:
        self.killed = True
        _kill_group(self.pid)

    def end(self) -> Outcome:
        os.close(self.pipe)
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        _kill_group(self.pid)  # what it has left running, while its number is still its own
        _, status, usage = os.wait4(self.pid, 0)
        lines = [json.loads(line) for line in self.content.splitlines()]
        doing = "\n".join(line["doing"] for line in lines if "doing" in line)
        seconds = usage.ru_utime + usage.ru_stime
        try:
            if lines and "status" in lines[-1]:
                return Outcome(**{"doing": doing, "seconds": seconds, **lines[-1]})
            output = (self.folder / "output").read_text(errors="replace")
            said = f"it slept for more than {WAITING:.0f} s" if self.killed else _death(status)
            return Outcome("failed", doing, said, _dumped_end(output), seconds)
        finally:
            _remove(self.folder)


def _run(case: Case, work: Work, folder: Path, pipe: int) -> None:
    """Run a case in the forked process, and write what becomes of it to the pipe."""

    def write(**values: str) -> None:
        os.write(pipe, json.dumps(values).encode() + b"\n")

    os.setpgid(0, 0)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    output = (folder / "output").open("w+b", buffering=0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number in (1, 2):
        os.dup2(output.fileno(), number)
    os.chdir(folder / "work")
    _limit(output)
    try:
        status = work(case, case.random(), folder / "work", lambda what: write(doing=what))
        write(status=status)
    except Refused as error:
        write(**_checked(str(error), error))
    except ValueError as error:
        write(**_checked(str(error), error, library=True))
    except BaseException as error:
        _lift_limits()
        said = str(error) if isinstance(error, Failure) else _one_line(error)
        write(status="failed", said=said[:LONGEST_SENTENCE], where=_end_of(error))


def _checked(sentence: str, error: BaseException, library: bool = False) -> dict[str, str]:
    """A refusal, which must be one sentence on one line."""
    problem = ""
    if not sentence.strip():
        problem = "the refusal says nothing"
    elif len(sentence) > LONGEST_SENTENCE and not library:
        problem = f"the refusal has {len(sentence):,} characters: {sentence[:300]}"
    elif library and "\n" in sentence.strip():
        problem = f"the refusal has several lines: {sentence[:1000]}"
    if problem:
        return {"status": "failed", "said": problem, "where": _end_of(error)}
    return {"status": "refused", "said": sentence, "where": _end_of(error)}


def _limit(output: Any) -> None:
    """Limits of this process; a crash or a hang writes its traceback to `output`."""
    faulthandler.enable(output)
    faulthandler.register(signal.SIGPROF, output, chain=True)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, most))
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, LARGEST_FILE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _lift_limits() -> None:
    """Room to say what has failed."""
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _end_of(error: BaseException) -> str:
    """The last frames of a traceback within this project, and the very last one."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "/bighmm/" in frame.filename][-3:]
    if frames and frames[-1] not in ours:
        ours.append(frames[-1])
    return " < ".join(f"{_short(f.filename)}:{f.lineno} {f.name}" for f in reversed(ours))


def _dumped_end(output: str) -> str:
    """The innermost frames that faulthandler has written, or the end of the output."""
    frames = [line.strip() for line in output.splitlines() if line.startswith('  File "')]
    if frames:
        return " < ".join(_short(frame.removeprefix('File "')) for frame in frames[:5])
    return " ".join(output[-400:].split())


def _short(name: str) -> str:
    """A file's name within this repository or a library, the same on every machine."""
    for mark in (f"{ROOT}/src/", f"{ROOT}/", "/site-packages/", "/lib/"):
        name = name.rpartition(mark)[2]
    return name


def _death(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number == signal.SIGPROF:
            return f"it took more than {SECONDS:.0f} s of processor time"
        return f"the process died: {signal.Signals(number).name}"
    return f"the process ended with status {os.WEXITSTATUS(status)} and no answer"


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Tally:
    """How many cases of a kind had which outcome."""

    counts: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0

    def add(self, outcome: Outcome) -> None:
        self.counts[outcome.status] = self.counts.get(outcome.status, 0) + 1
        self.seconds += outcome.seconds
