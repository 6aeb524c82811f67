"""Work in threads: a few at a time, with progress, a limit of time, and a way to stop it.

Every question is a job. Most take some milliseconds. One that has taken longer than `QUICK` seconds
gives up its place to the next, and goes on beside it as one of few long ones. If there are too many
of those, it pauses at its next `base.interrupting.check` until one has finished. Long ones also
pause while short ones are worked on, though never for more than `GIVE_WAY` seconds without going on
for `TURN` seconds. So somebody who asks for something long does not keep others from short answers.
"""

from __future__ import annotations

import secrets
import threading
import time
import traceback
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from bighmm.base.interrupting import Interrupted, watched
from bighmm.explore.settings import BUSY, MISSING, UNANSWERABLE, Limits, Refused

QUICK = 1.0  # seconds after which a job is a long one
GIVE_WAY = 1.0  # seconds that a long job waits for short ones
IDLE = 60.0  # seconds after which a thread that has nothing to do ends
TURN = 0.25  # seconds that it then goes on at least
MOST_PAUSED = 32  # long jobs that wait; each holds what it has computed so far
Work = Callable[[], Any]


class Job:
    """A question that is being answered; `jobs` runs it."""

    def __init__(self, jobs: Jobs, question: str, work: Work) -> None:
        self.id = secrets.token_urlsafe(16)
        self.question, self.work, self.jobs = question, work, jobs
        self.future: Future[Any] = Future()
        self.state = "queued"
        self.done: int | None = None
        self.total: int | None = None
        self.asked = time.monotonic()
        self.began = self.ended = 0.0
        self.long = self.background = False
        self.deadline = self.turn_until = 0.0
        self.stopping = threading.Event()

    def check(self) -> None:
        """As of `Watcher`: raises if the job is to stop, and waits while it has to."""
        if self.stopping.is_set():
            raise Interrupted(f"{self.question} was cancelled")
        now = time.monotonic()
        if now > self.deadline:
            limit = self.jobs.limits.job_seconds
            raise Refused(
                UNANSWERABLE, f"{self.question} took longer than {limit:g} seconds; ask for less"
            )
        if not self.long and now - self.began > QUICK:
            self.jobs.make_long(self)
        elif self.long and now > self.turn_until:
            self.jobs.give_way(self)

    def report(self, done: int, total: int) -> None:
        """As of `Watcher`."""
        self.done, self.total = done, total
        self.check()

    def cancel(self) -> None:
        """Stop it at its next check; one that has not begun never does."""
        self.stopping.set()
        self.jobs.forget_waiting(self)

    def described(self) -> dict[str, Any]:
        """What a client is told, without the answer."""
        until = self.ended or time.monotonic()
        fraction = None if not self.total or self.done is None else self.done / self.total
        return {
            "id": self.id,
            "question": self.question,
            "state": self.state,
            "done": self.done,
            "total": self.total,
            "fraction": 1.0 if self.state == "done" else fraction,
            "seconds": round(until - self.asked, 3),
        }


class Jobs:
    """The threads that answer questions, and the jobs that clients ask about."""

    def __init__(self, limits: Limits, quick: int = 2, long: int = 2) -> None:
        """quick, long: how many short and how many long jobs run at the same time."""
        self.limits, self.quick, self.most_long = limits, quick, long
        self.lock = threading.Condition()
        self.waiting: deque[Job] = deque()  # for their turn
        self.ready: deque[Job] = deque()  # for a thread
        self.idle = 0  # threads
        self.running_quick = self.running_long = self.paused = 0
        self.active: set[Job] = set()  # that wait or run
        self.known: OrderedDict[str, Job] = OrderedDict()
        self.closed = False

    def start(self, question: str, work: Work, *, background: bool = False) -> Job:
        """Begin to work on a question, as soon as it is its turn.

        background: whether it is not a client's, and so counts as a long one from the beginning.
        Raises Refused where too many wait.
        """
        job = Job(self, question, work)
        job.background = job.long = background
        with self.lock:
            if self.closed:
                raise Refused(BUSY, "the server is being shut down", retry_after=5)
            busy = len(self.waiting) + self.running_quick + self.running_long + self.paused
            if not background and busy >= self.limits.waiting:
                raise Refused(
                    BUSY,
                    f"{busy} requests are being answered or wait, the most that there may be; ask "
                    "again in a moment",
                    retry_after=1,
                )
            self.active.add(job)
            if background:
                self.paused += 1
                self._hand_over(job)
            else:
                self.waiting.append(job)
                self._fill()
        return job

    def remember(self, job: Job) -> None:
        """Keep a job, so that a client can ask about it."""
        with self.lock:
            now = time.monotonic()
            old = [
                id
                for id, known in self.known.items()
                if known.ended and now - known.ended > self.limits.keep_seconds
            ]
            for id in old:
                del self.known[id]
            if len(self.known) >= self.limits.jobs:
                finished = next((id for id, known in self.known.items() if known.ended), None)
                if finished is None:
                    job.stopping.set()
                    raise Refused(BUSY, "too many jobs are running; ask again later", retry_after=5)
                del self.known[finished]
            self.known[job.id] = job

    def find(self, id: str) -> Job:
        """The job of this id; Refused if there is none."""
        with self.lock:
            job = self.known.get(id)
        if job is None:
            raise Refused(
                MISSING,
                f"there is no job {id[:40]!r}; finished ones are kept for "
                f"{self.limits.keep_seconds / 60:g} minutes",
            )
        return job

    def make_long(self, job: Job) -> None:
        """Give up the place of a quick job, and wait for that of a long one."""
        with self.lock:
            if self.paused >= MOST_PAUSED:
                raise Refused(
                    BUSY,
                    f"{self.paused} long questions wait already; ask again later",
                    retry_after=30,
                )
            job.long = True
            self.running_quick -= 1
            self._fill()
            self.paused += 1
            self.lock.notify_all()
            try:
                self._wait_for_long(job)
            finally:
                self.paused -= 1
                self.running_long += 1  # also if it is to stop: `_finish` takes it back
        if job.stopping.is_set():
            raise Interrupted(f"{job.question} was cancelled")

    def give_way(self, job: Job) -> None:
        """Let a long job wait while short ones are worked on, but not for long."""

        def may_go_on() -> bool:
            return not (self.running_quick or self.waiting) or job.stopping.is_set()

        with self.lock:
            self.lock.wait_for(may_go_on, GIVE_WAY)
        job.turn_until = time.monotonic() + TURN
        if job.stopping.is_set():
            raise Interrupted(f"{job.question} was cancelled")

    def forget_waiting(self, job: Job) -> None:
        """Take a job out of the queue that has not begun."""
        with self.lock:
            if job in self.waiting:
                self.waiting.remove(job)
                self._end(job, "cancelled", Interrupted(f"{job.question} was cancelled"))
            self.lock.notify_all()

    def close(self) -> None:
        """Stop all work; nothing begins any more."""
        with self.lock:
            self.closed = True
            active = list(self.active)
        for job in active:
            job.cancel()

    def _fill(self) -> None:
        """Start the next jobs, with the lock held."""
        while self.waiting and self.running_quick < self.quick:
            self.running_quick += 1
            self._hand_over(self.waiting.popleft())

    def _hand_over(self, job: Job) -> None:
        """Give a job to an idle thread, or to a new one; with the lock held.

        Threads are used again: each has memory of its own that torch has taken for it.
        """
        self.ready.append(job)
        if self.idle >= len(self.ready):
            self.lock.notify_all()
        else:
            threading.Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        """A thread: one job after the other, until there has been none for a while."""
        while True:
            with self.lock:
                self.idle += 1
                there = self.lock.wait_for(lambda: bool(self.ready), IDLE)
                self.idle -= 1
                if not there:
                    return
                job = self.ready.popleft()
                if job.background:
                    self._wait_for_long(job)
                    self.paused -= 1
                    self.running_long += 1
            self._run(job)

    def _wait_for_long(self, job: Job) -> None:
        """Wait until there is a place for a long job, or it is to stop; with the lock held.

        What runs in the background leaves one place to clients.
        """
        most = max(1, self.most_long - 1) if job.background else self.most_long
        while self.running_long >= most and not job.stopping.is_set():
            self.lock.wait(1.0)

    def _run(self, job: Job) -> None:
        job.state, job.began = "running", time.monotonic()
        job.deadline = job.began + self.limits.job_seconds
        answer: Any = None
        error: BaseException | None = None
        try:
            with watched(job):
                job.check()
                answer = job.work()
        except BaseException as caught:  # whatever it is, the client is told and the server goes on
            error = caught
            _let_go(caught)
        with self.lock:
            if job.long:
                self.running_long -= 1
            else:
                self.running_quick -= 1
            state = "done" if error is None else "failed"
            if isinstance(error, Interrupted):
                state = "cancelled"
            self._end(job, state, error, answer)
            self._fill()
            self.lock.notify_all()

    def _end(self, job: Job, state: str, error: BaseException | None, answer: Any = None) -> None:
        job.state, job.ended = state, time.monotonic()
        job.work = _nothing  # it may hold much
        self.active.discard(job)
        if error is not None:
            job.future.set_exception(error)
        else:
            job.future.set_result(answer)


def _nothing() -> None:
    return None


def _let_go(error: BaseException) -> None:
    """Forget what the functions held that an error came through: the job is kept for a while."""
    found: BaseException | None = error
    while found is not None:
        traceback.clear_frames(found.__traceback__)
        found = found.__cause__ or found.__context__
