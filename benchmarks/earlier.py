"""Code of this checkout and of an earlier one, in two processes that take turns.

Whatever else the machine does then disturbs both alike. An earlier checkout is made by

    git worktree add ../before COMMIT
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

from record import ROOT


class Turns:
    """Two workers, of the earlier code and of the present one, that run the same program.

    program: Python source. It has its arguments as JSON in `sys.argv[1]`, reads one line of JSON
        from standard input for each turn, and answers each with one line of JSON.
    """

    def __init__(
        self, earlier: Path, program: str, arguments: Any, surroundings: dict[str, str]
    ) -> None:
        self.workers = [
            _start(place, program, arguments, surroundings) for place in (earlier.resolve(), ROOT)
        ]

    def ask(self, question: Any, turns: int) -> tuple[list[Any], list[Any]]:
        """The answers of the earlier code and of the present one, one of each for every turn.

        Each is asked once before, to warm up, and who begins a turn alternates.
        """
        for worker in self.workers:
            _ask(worker, question)
        answers: tuple[list[Any], list[Any]] = ([], [])
        for turn in range(turns):
            for which in (0, 1) if turn % 2 else (1, 0):
                answers[which].append(_ask(self.workers[which], question))
        return answers

    def __enter__(self) -> Turns:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for worker in self.workers:
            worker.communicate()


def commit_of(checkout: Path) -> str:
    command = ["git", "-C", str(checkout), "rev-parse", "--short=12", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _start(
    checkout: Path, program: str, arguments: Any, surroundings: dict[str, str]
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-c", program, json.dumps(arguments)],
        env={**os.environ, "PYTHONPATH": str(checkout / "src"), **surroundings},
        cwd=checkout,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _ask(worker: Any, question: Any) -> Any:
    worker.stdin.write(json.dumps(question) + "\n")
    worker.stdin.flush()
    return json.loads(worker.stdout.readline())
