"""Starts several processes that work together, as often as it is asked; `test_several*.py` ask.

A request is a line of JSON on standard input: how many processes, a port where they meet, and the
runs that they do one after the other, or the words of a command. The answer is a line too: the
status of each, and what it has printed.
The processes are forked, as it takes seconds to load torch.
"""

import contextlib
import json
import os
import signal
import sys
import tempfile
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from bighmm.base import meeting, processes
from bighmm.base.launch import Said
from bighmm.train.loop import Stopped
from bighmm.train.recipe import from_dict
from bighmm.train.run import train_run


def do(asked: dict[str, Any]) -> None:
    steps = 0

    def should_stop() -> bool:
        nonlocal steps
        steps += 1
        if [processes.current().number, steps] == asked.get("killed"):
            os.kill(os.getpid(), signal.SIGKILL)
        return steps == asked.get("stop_after")

    recipe = from_dict(asked["recipe"], "the test")
    with contextlib.suppress(Stopped):
        train_run(
            asked["folder"], recipe, resume=asked.get("resume", False), should_stop=should_stop
        )


def command(argv: list[str]) -> int:
    """The status of a command of `bighmm`, as it is typed."""
    from bighmm.cli.main import main

    try:
        main(argv)
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def work(number: int, request: dict[str, Any]) -> int:
    os.environ |= {
        "RANK": str(number),
        "LOCAL_RANK": str(number),
        "WORLD_SIZE": str(request["count"]),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(request["port"]),
    }
    os.environ |= request.get("environment", {}).get(str(number), {})
    if "patience" in request:
        meeting.MEETING = timedelta(seconds=request["patience"])
    if "argv" in request:
        return command([os.path.expandvars(word) for word in request["argv"]])
    try:
        with processes.start(torch.device("cpu")):
            for asked in request["runs"]:
                do(asked)
    except Said:
        return 2
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def answer(request: dict[str, Any]) -> list[tuple[int, str]]:
    with tempfile.TemporaryDirectory() as home:
        errors = [Path(home) / str(number) for number in range(request["count"])]
        started = []
        for number, path in enumerate(errors):
            child = os.fork()
            if child == 0:
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
                os.dup2(2, 1)
                status = 1
                try:
                    status = work(number, request)
                except BaseException:
                    traceback.print_exc()
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
            started.append(child)
        statuses = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in started]
        return [(s, path.read_text()) for s, path in zip(statuses, errors, strict=True)]


if __name__ == "__main__":
    torch.set_num_threads(1)
    meeting.ROLL_CALL = timedelta(seconds=1)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)
