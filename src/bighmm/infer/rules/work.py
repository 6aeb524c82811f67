"""The limit on the work of compiling a rule.

A short rule can need an automaton without end: that twenty words all occur takes a million states.
The work is counted in steps, not in seconds, so that a rule compiles everywhere or nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from bighmm.base.interrupting import check

LIMIT = 2**30  # steps; about ten seconds, and tables of at most half a GiB
ENTRY = 16  # steps that an entry of a table of transitions counts as
PYTHON = 64  # … that a step of Python counts as
LOOP = 32  # steps of Python that one more call of NumPy's functions on small arrays counts as

_left: ContextVar[list[int] | None] = ContextVar("work left", default=None)  # one number


class TooMuchWork(ValueError):
    """A rule is too large."""


@contextmanager
def limited(rule: object) -> Iterator[None]:
    """Context in which the work for a rule is limited, within outer limits if there are any.

    Raises ValueError that names the rule if the work is too much.
    """
    if _left.get() is not None:
        yield
        return
    token = _left.set([LIMIT])
    try:
        yield
    except TooMuchWork:
        name = f"{rule}"
        name = name if len(name) <= 100 else f"{name[:97]}..."
        raise ValueError(
            f"the rule {name} is too large: its automaton would have too many states; use fewer or "
            "shorter conditions"
        ) from None
    finally:
        _left.reset(token)


def spend(steps: int = 0, *, entries: int = 0, in_python: int = 0) -> None:
    """Count work before it is done; raises TooMuchWork beyond the limit.

    steps: of NumPy, about ten nanoseconds each.
    entries: of a new table of transitions.
    in_python: steps of Python.
    """
    check()
    left = _left.get()
    if left is not None:
        left[0] -= steps + ENTRY * entries + PYTHON * in_python
        if left[0] < 0:
            raise TooMuchWork("the rule is too large")
