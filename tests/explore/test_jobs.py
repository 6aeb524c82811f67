"""Questions that take long: progress, cancelling, limits of time, and others meanwhile."""

import gc
import threading
import time
import weakref

import pytest
from served import Client

from bighmm.base import interrupting
from bighmm.base.interrupting import Interrupted
from bighmm.explore import Limits, make_app
from bighmm.explore.bodies import ASKED
from bighmm.explore.jobs import Jobs
from bighmm.explore.settings import Refused

PATIENCE = 30  # seconds, after which something that never happens fails


class Slow:
    """Work that reports 1 of 4, and goes on until it is let go or stopped."""

    def __init__(self):
        self.begun, self.let_go, self.stopped = (threading.Event() for _ in range(3))

    def __call__(self):
        self.begun.set()
        interrupting.report(1, 4)
        try:
            while not self.let_go.wait(0.005):
                interrupting.check()
        except BaseException:
            self.stopped.set()
            raise
        return {"version": 1, "slow": True}


@pytest.fixture
def slow(monkeypatch):
    """The question `tag` is such work."""
    work = Slow()

    def tag(lm, text: str):
        return work()

    monkeypatch.setitem(ASKED, "tag", tag)
    yield work
    work.let_go.set()


@pytest.fixture
def asking(opened):
    with Client(make_app(opened[:1], Limits(waiting=3))) as client:
        yield client


def ended(client, id):
    """A job that is no longer running."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        told = client.get(f"/jobs/{id}?wait=1").json["job"]
        if told["state"] not in ("queued", "running"):
            return told
    raise AssertionError(f"the job is still {told['state']}")


def test_a_long_question_is_a_job_with_progress(asking, slow):
    asked = asking.post("/tag?wait=0.01", {"text": "the cat"})
    assert asked.status == 202
    job = asked.json["job"]
    assert slow.begun.wait(PATIENCE)
    told = asking.get(f"/jobs/{job['id']}").json["job"]
    assert (told["state"], told["fraction"]) == ("running", 0.25) and "answer" not in told
    assert asking.post("/score", {"texts": ["the"]}).status == 200  # others go on meanwhile
    slow.let_go.set()
    assert ended(asking, job["id"])["answer"] == {"version": 1, "slow": True}


def test_a_job_is_cancelled(asking, slow):
    job = asking.post("/tag?wait=0", {"text": "the cat"}).json["job"]
    assert asking.ask("DELETE", f"/jobs/{job['id']}").status == 200
    assert slow.stopped.wait(PATIENCE) or not slow.begun.is_set()
    assert ended(asking, job["id"])["state"] == "cancelled"


def test_a_client_that_goes_away_takes_its_question_along(opened, slow):
    with Client(make_app(opened[:1])) as client:
        client.post("/tag", {"text": "the cat"}, leave=True)
        assert slow.stopped.wait(PATIENCE)


def test_a_question_without_wait_has_a_limit_of_time(opened, slow):
    with Client(make_app(opened[:1], Limits(seconds=0.05))) as client:
        found = client.post("/tag", {"text": "the cat"})
    assert found.status == 422 and "?wait=1" in found.json["error"]["message"]
    assert slow.stopped.wait(PATIENCE)


def test_a_failed_job_tells_why(asking):
    job = asking.post("/fill?wait=0", {"text": "no gap"}).json["job"]
    told = ended(asking, job["id"])
    assert told["state"] == "failed" and told["error"]["status"] == 422


def test_an_error_of_the_program_does_not_end_the_server(asking, monkeypatch, capsys):
    def tag(lm, text: str):
        return 1 / 0

    monkeypatch.setitem(ASKED, "tag", tag)
    assert asking.post("/tag", {"text": "the cat"}).status == 500
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert asking.get("/health").status == 200


def test_too_many_questions_are_sent_away(asking, slow):
    jobs = [asking.post("/tag?wait=0", {"text": "a"}).json["job"]["id"] for _ in range(3)]
    found = asking.post("/tag?wait=0", {"text": "a"})
    assert found.status == 503 and found.headers["retry-after"] == "1"
    assert asking.get("/health").status == 200
    for id in jobs:
        asking.ask("DELETE", f"/jobs/{id}")
        assert ended(asking, id)["state"] == "cancelled"


def test_long_jobs_leave_their_places_to_short_ones(monkeypatch):
    """With places for one short and one long job, a short one passes two long ones."""
    monkeypatch.setattr("bighmm.explore.jobs.QUICK", 0.0)
    jobs = Jobs(Limits(), quick=1, long=1)
    first, second = Slow(), Slow()
    long = [jobs.start("first", first)]
    assert first.begun.wait(PATIENCE)
    long.append(jobs.start("second", second))
    with jobs.lock:  # it pauses, as the first one is long
        assert jobs.lock.wait_for(lambda: jobs.paused == 1, PATIENCE)
    monkeypatch.setattr("bighmm.explore.jobs.QUICK", 1000.0)
    assert jobs.start("short", lambda: 5).future.result(PATIENCE) == 5
    assert not long[1].future.done()
    long[1].cancel()
    with pytest.raises(Interrupted):
        long[1].future.result(PATIENCE)
    first.let_go.set()
    assert long[0].future.result(PATIENCE)["slow"]
    assert (jobs.running_quick, jobs.running_long, jobs.paused) == (0, 0, 0)


def test_long_jobs_wait_for_short_ones(monkeypatch):
    monkeypatch.setattr("bighmm.explore.jobs.TURN", 0.0)
    monkeypatch.setattr("bighmm.explore.jobs.GIVE_WAY", PATIENCE)
    jobs = Jobs(Limits(), quick=1, long=1)
    short, long = threading.Event(), Slow()
    quick = jobs.start("short", lambda: short.wait(PATIENCE))
    background = jobs.start("long", long, background=True)
    assert long.begun.wait(0.02) is False and background.state == "running"
    short.set()
    assert quick.future.result(PATIENCE) and long.begun.wait(PATIENCE)
    background.cancel()
    with pytest.raises(Interrupted):
        background.future.result(PATIENCE)


def test_a_job_has_a_limit_of_time():
    job = Jobs(Limits(job_seconds=0.0)).start("this", Slow())
    with pytest.raises(Refused, match="this took longer than 0 seconds"):
        job.future.result(PATIENCE)


def test_finished_jobs_are_forgotten():
    jobs = Jobs(Limits(jobs=2, keep_seconds=1000))
    made = [jobs.start("this", lambda: 1) for _ in range(3)]
    for job in made:
        job.future.result(PATIENCE)
        while not job.ended:
            time.sleep(0.001)
        jobs.remember(job)
    assert jobs.find(made[2].id) is made[2]
    with pytest.raises(Refused, match="there is no job"):
        jobs.find(made[0].id)


def test_what_is_interrupted_in_the_library(opened):
    """Rules, samples and surveys look whether they are to stop."""
    model = opened[1]

    class Stop:
        def __init__(self):
            self.reports = []

        def check(self):
            raise Interrupted("stop")

        def report(self, done, total):
            self.reports.append((done, total))

    stop = Stop()
    with interrupting.watched(stop):
        for ask in (
            lambda: model.lm.rule_log_prob(model.lm.rule(must=["cat"]), 5),
            lambda: model.lm.sample(2, 5),
        ):
            with pytest.raises(Interrupted):
                ask()
        model.survey.compute()
    assert stop.reports[-1][0] == stop.reports[-1][1]


def test_the_survey_is_cancelled_and_begun_again(opened):
    with Client(make_app(opened[:1])) as client:
        opened[0].survey.job.future.result(PATIENCE)
        assert client.ask("DELETE", "/survey").json["survey"]["state"] == "done"
        assert client.post("/survey").json["survey"]["state"] == "done"
    with Client(make_app(opened[4:])) as client:
        assert client.post("/survey").status == 409


@pytest.mark.parametrize("cancelled", [True, False])
def test_jobs_that_ended_early_hold_nothing(cancelled):
    """They are kept for a while, with their error, but not what its functions had computed."""

    class Large:
        pass

    held, begun = [], threading.Event()

    def work():
        large = Large()
        held.append(weakref.ref(large))
        begun.set()
        try:
            while cancelled:
                interrupting.check()
            raise KeyError("inner")
        except KeyError:
            raise ValueError("outer") from None

    jobs = Jobs(Limits())
    job = jobs.start("work", work)
    jobs.remember(job)
    assert begun.wait(PATIENCE)
    if cancelled:
        job.cancel()
    with pytest.raises(Interrupted if cancelled else ValueError):
        job.future.result(PATIENCE)
    gc.collect()
    assert job.id in jobs.known and held[0]() is None
