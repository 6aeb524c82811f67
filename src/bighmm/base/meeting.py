"""Where the processes of a launcher find each other, and what they leave there when they fail.

A process that fails leaves its sentence there. Those that lose it look for who is still there, so
that the user reads which process has ended, and why, and reads it once.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as distributed

from bighmm.base.launch import Said, restarts
from bighmm.base.settings import shown

MEETING = timedelta(minutes=5)  # for all processes to come
ROLL_CALL = timedelta(seconds=5)  # for those that are left to answer
FAILED, ALIVE, SPOKEN, TURN = "failed", "alive", "said", "turn"  # kinds of keys


class Lost(ValueError):
    """Another process has ended, or cannot be reached.

    told: the other process has said why itself.
    """

    def __init__(self, sentence: str, told: bool = False) -> None:
        super().__init__(sentence)
        self.told = told


@dataclass(frozen=True)
class Meeting:
    """What all processes can read and write while they work together."""

    store: Any
    number: int  # of this process
    count: int

    def next_turn(self, name: str) -> int:
        """0 for the process that asks first, then 1, … for the next ones, whoever they are."""
        return int(self.store.add(f"{TURN}/{name}", 1)) - 1

    def left_behind(self, error: BaseException) -> BaseException:
        """What a process that fails with `error` raises: `Said` where another has said the same."""
        sentence = " ".join(str(error).split()) or type(error).__name__
        with contextlib.suppress(RuntimeError):
            if not isinstance(error, Lost):  # those are about another process
                self.store.set(f"{FAILED}/{self.number}", sentence)
            if isinstance(error, Lost) and error.told:
                return Said(sentence)
            if isinstance(error, ValueError) and not self._may_say(sentence):
                return Said(sentence)
        return error

    def who_is_lost(self, reason: str) -> Lost:
        """The sentence about the processes that do not answer; ask once a sum has failed."""
        try:
            missing = self._roll_call()
            said = {n: self._sentence_of(n) for n in range(self.count) if n != self.number}
        except RuntimeError:
            return Lost(
                f"process {self.number} of {self.count} has lost the others, which meet at "
                f"{place()}: process 0, or its machine, is gone"
            )
        failed = [n for n, sentence in said.items() if sentence] or missing
        if not failed:
            return Lost(f"the connection between the {self.count} processes is broken: {reason}")
        why = said.get(failed[0]) or "it was killed, or its machine cannot be reached"
        return Lost(f"process {failed[0]} of {self.count} has ended: {why}", bool(said[failed[0]]))

    def _roll_call(self) -> list[int]:
        """The other processes that do not say in time that they are there."""
        self.store.set(f"{ALIVE}/{self.number}", "yes")
        missing, until = [], time.monotonic() + ROLL_CALL.total_seconds()
        for other in range(self.count):
            keys = [f"{ALIVE}/{other}"], [f"{FAILED}/{other}"]
            while not any(map(self.store.check, keys)):
                if time.monotonic() > until:
                    missing.append(other)
                    break
                time.sleep(0.02)
        return missing

    def _sentence_of(self, other: int) -> str:
        key = f"{FAILED}/{other}"
        return self.store.get(key).decode() if self.store.check([key]) else ""

    def _may_say(self, sentence: str) -> bool:
        digest = hashlib.sha256(sentence.encode()).hexdigest()
        return int(self.store.add(f"{SPOKEN}/{digest}", 1)) == 1


def meet() -> Meeting:
    """The meeting of all processes of the launcher, once they have come.

    Raises `Lost` with one sentence if they do not come in time, and ValueError for variables that
    no launcher sets, with which they never would.
    """
    _check_variables()
    try:
        store, number, count = next(distributed.rendezvous("env://", timeout=MEETING))
    except (RuntimeError, ValueError) as error:
        count, number = os.environ.get("WORLD_SIZE", "?"), os.environ.get("RANK", "?")
        raise Lost(
            f"process {number} of {count} cannot meet the others at {place()} within "
            f"{MEETING.total_seconds():.0f} s: {_first_line(error)}"
        ) from None
    # The store may be that of the launcher, and hold what the processes before a restart have left.
    return Meeting(distributed.PrefixStore(f"start {restarts()}", store), number, count)


def _check_variables() -> None:
    """Raises ValueError for a number of this process, or a port, that there cannot be."""
    count, number, port = (os.environ.get(n) for n in ("WORLD_SIZE", "RANK", "MASTER_PORT"))
    for name, value, most in (
        ("RANK", number, int(count or 1) - 1),
        ("MASTER_PORT", port, 65_535),
    ):
        if value is not None and not (_is_number(value) and int(value) <= most):
            raise ValueError(
                f"the variable {name} must be a number from 0 to {most}, not {shown(value)}; "
                "torchrun sets it"
            )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def place() -> str:
    """The address and the port where processes meet."""
    return f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"


@contextmanager
def noticed(meeting: Meeting | None) -> Iterator[None]:
    """Context in which an error of torch.distributed becomes the sentence about who is lost."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        if isinstance(error, Lost):
            raise
        if meeting is None:
            raise Lost(_first_line(error)) from None
        # Whoever waits for this process must not wait any longer, but answer the roll call.
        with contextlib.suppress(RuntimeError, ValueError, AssertionError):
            distributed.destroy_process_group()
        raise meeting.who_is_lost(_first_line(error)) from None


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
