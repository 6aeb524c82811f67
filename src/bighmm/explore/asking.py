"""How a request becomes a job, and a job an answer."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
import traceback
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from bighmm.base.interrupting import Interrupted
from bighmm.base.settings import fill
from bighmm.explore.jobs import Job, Jobs
from bighmm.explore.replies import described, encoded, reply
from bighmm.explore.settings import (
    BAD,
    TOO_LARGE,
    UNANSWERABLE,
    UNAVAILABLE,
    VERSION,
    WRONG_TYPE,
    Limits,
    Refused,
)

T = TypeVar("T")
LONGEST_WAIT = 30.0  # seconds of ?wait
LOOK = 0.25  # seconds between looks whether the client is still there


async def read_body(request: Request, limits: Limits) -> bytes:
    """The body of a request of JSON, at most as long as allowed."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refused(
            WRONG_TYPE, f"the content type must be application/json, not {kind[:60] or 'none'!r}"
        )
    too_large = Refused(
        TOO_LARGE, f"the body is larger than {limits.body:,} bytes, the most that is read"
    )
    said = request.headers.get("content-length", "")
    if said.isdecimal() and int(said[:18]) > limits.body:
        raise too_large
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > limits.body:
                raise too_large
            parts.append(part)
    except ClientDisconnect:
        raise Refused(BAD, "the connection was closed before the body was complete") from None
    return b"".join(parts)


def query_of(cls: type[T], given: Mapping[str, str], extra: tuple[str, ...] = ()) -> T:
    """What stands after the ? of an address as a dataclass; names in `extra` are for others."""
    hints = typing.get_type_hints(cls)
    values: dict[str, Any] = {}
    for name, text in given.items():
        if name in extra:
            continue
        hint = hints.get(name)
        options = typing.get_args(hint) or (hint,)
        if hint is not None and text == "" and type(None) in options:
            continue
        values[name] = _number(name, text, int) if int in options else text
    try:
        return fill(cls, values, "the address")
    except ValueError as error:
        raise Refused(BAD, str(error)) from None


def wait_of(request: Request) -> float | None:
    """The seconds of ?wait; None if it is not given."""
    text = request.query_params.get("wait")
    if text is None:
        return None
    found = _number("wait", text, float)
    if not 0 <= found <= LONGEST_WAIT:
        raise Refused(BAD, f"wait is a number of seconds from 0 to {LONGEST_WAIT:g}, not {text!r}")
    return found


async def answer(
    request: Request, jobs: Jobs, question: str, work: Callable[[], dict[str, Any]]
) -> Response:
    """The answer to a question, or with ?wait the job that works on it.

    A client that goes away takes its question with it.
    """
    wait = wait_of(request)
    job = jobs.start(question, lambda: encoded(work()))  # not in the thread that serves all
    limit = jobs.limits.seconds if wait is None else wait
    try:
        there = await _finished(job, request, limit)
    except asyncio.CancelledError:
        job.cancel()
        raise
    if there:
        return reply(result(job))
    if wait is not None:
        jobs.remember(job)
        return reply(told(job), 202)
    job.cancel()
    raise Refused(
        UNANSWERABLE,
        f"{question} took longer than {limit:g} seconds; ask with ?wait=1 for a job that shows its "
        "progress, or ask for less",
    )


async def look_at(request: Request, job: Job) -> Response:
    """What is known about a job, as soon as it has ended or after ?wait."""
    wait = wait_of(request)
    if wait:
        await _finished(job, request, wait, cancel=False)
    return reply(told(job))


def told(job: Job) -> dict[str, Any]:
    """A job in JSON, with its answer or error once it has ended."""
    about = job.described()
    value: dict[str, Any] = {"version": VERSION, "job": about}
    if job.state == "done":
        about["answer"] = json.loads(job.future.result())
    elif job.state == "failed":
        about["error"] = described(_refused(job))
    return value


def result(job: Job) -> bytes:
    """The encoded answer of a job that has ended; Refused with the reason if there is none."""
    if job.future.exception() is None:
        return job.future.result()
    raise _refused(job)


def _refused(job: Job) -> Refused:
    """The failure of a job as a refusal; what is nobody's mistake is printed for the operator."""
    error = job.future.exception()
    assert error is not None
    if isinstance(error, Refused):
        return error
    if isinstance(error, Interrupted):
        return Refused(UNAVAILABLE, str(error))
    if isinstance(error, ValueError):
        return Refused(UNANSWERABLE, str(error))
    if isinstance(error, MemoryError) or "allocate memory" in str(error):
        return Refused(TOO_LARGE, f"{job.question} needs more memory than there is; ask for less")
    if isinstance(error, OSError):
        return Refused(UNAVAILABLE, f"a file cannot be read: {error.strerror or error}")
    traceback.print_exception(error, file=sys.stderr)
    return Refused(500, f"{job.question} failed by an error of this program")


async def _finished(job: Job, request: Request, limit: float, cancel: bool = True) -> bool:
    """Whether a job has ended within so many seconds; cancels it if the client goes away."""
    loop = asyncio.get_running_loop()
    until = loop.time() + limit
    ended = asyncio.Event()

    def tell(_: Any) -> None:
        loop.call_soon_threadsafe(ended.set)

    job.future.add_done_callback(tell)
    while not job.future.done():
        left = until - loop.time()
        if left <= 0:
            return False
        try:
            await asyncio.wait_for(ended.wait(), min(left, LOOK))
        except TimeoutError:
            if await request.is_disconnected():
                if cancel:
                    job.cancel()
                raise Refused(BAD, "the client has closed the connection") from None
    return True


def _number(name: str, text: str, kind: type) -> Any:
    try:
        if len(text) > 20 or not text.isascii() or "_" in text:
            raise ValueError
        found = kind(text)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        raise Refused(BAD, f"{name} must be {what}, not {text[:40]!r}") from None
    return found


def fields_of(cls: type) -> list[tuple[str, Any, Any]]:
    """Names, types and defaults of the fields of a dataclass of query parameters."""
    hints = typing.get_type_hints(cls, include_extras=True)
    return [(field.name, hints[field.name], field.default) for field in dataclasses.fields(cls)]
