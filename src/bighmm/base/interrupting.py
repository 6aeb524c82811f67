"""Long work that tells how far it is, and that another thread can stop.

Code that works for long calls `report` once for each part of its work, and `check` in inner loops.
Both do nothing unless the work is done within `watched`, so they cost next to nothing elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol


class Interrupted(Exception):
    """The work was stopped by whoever watches it."""


class Watcher(Protocol):
    """Who watches some work; both methods may raise `Interrupted`."""

    def check(self) -> None:
        """Called often, within the parts of the work."""

    def report(self, done: int, total: int) -> None:
        """Called when `done` of `total` parts of the work are done."""


@contextmanager
def watched(watcher: Watcher) -> Iterator[None]:
    """Context in which the work of this thread is watched."""
    token = _watcher.set(watcher)
    try:
        yield
    finally:
        _watcher.reset(token)


def check() -> None:
    """Raises `Interrupted` if the work is to stop."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher.check()


def report(done: int, total: int) -> None:
    """Tell that `done` of `total` parts are done; raises `Interrupted` if the work is to stop."""
    watcher = _watcher.get()
    if watcher is not None:
        watcher.report(done, total)


_watcher: ContextVar[Watcher | None] = ContextVar("watcher", default=None)
