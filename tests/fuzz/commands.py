"""Commands of the program, called in this process with their output caught."""

from __future__ import annotations

import io
import json
import re
import sys
from dataclasses import dataclass
from typing import Any

from bighmm.cli.main import main

from .outcome import Failure, Refused


@dataclass(frozen=True)
class Done:
    status: int
    out: str
    err: str


def call(arguments: list[str], stdin: bytes = b"") -> Done:
    """Run a command. What it raises goes on to the caller, as it would show a traceback."""
    caught = [  # as Python opens them
        io.TextIOWrapper(io.BytesIO(), "utf-8", errors) for errors in ("strict", "backslashreplace")
    ]
    before = sys.stdin, sys.stdout, sys.stderr
    status: Any = 0
    sys.stdin = io.TextIOWrapper(io.BytesIO(stdin), "utf-8")
    sys.stdout, sys.stderr = caught
    try:
        main(arguments)
    except SystemExit as end:
        status = 0 if end.code is None else end.code
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
    texts = []
    for stream in caught:
        stream.flush()
        texts.append(stream.buffer.getvalue().decode())  # type: ignore[attr-defined]
    return Done(status, *texts)


def ask(*arguments: object, stdin: bytes = b"") -> Any:
    """The JSON object that a command prints; `Refused` with its sentence if it refuses.

    Raises `Failure` for any other ending.
    """
    done = call([*map(str, arguments), "--json"], stdin)
    check(done)
    try:
        return json.loads(done.out, parse_constant=float)
    except json.JSONDecodeError as error:
        raise Failure(f"the output is not JSON ({error}): {done.out[:200]!r}") from None


def check(done: Done) -> None:
    """Raise `Refused` with the sentence of a refusal, `Failure` if there is not exactly one."""
    if "Traceback (most recent call last)" in done.err:
        raise Failure(f"a traceback was printed: {done.err[-500:]}")
    if done.status == 0:
        return
    if done.status != 2:
        raise Failure(f"the status is {done.status!r}: {done.err[-300:]}")
    lines = done.err.splitlines()
    said = [line for line in lines if line.startswith("bighmm: ")]
    if len(said) == 1 and lines[-1] == said[0] and not done.out:
        raise Refused(said[0])
    if re.search(r"╭─.*─╮|^usage: ", done.err, re.M):  # the parser's own way to refuse
        raise Refused("the arguments cannot be parsed: " + " ".join(done.err.split())[:1000])
    raise Failure(f"status 2 without exactly one sentence: {done.err[-500:]!r}, {done.out[:100]!r}")
