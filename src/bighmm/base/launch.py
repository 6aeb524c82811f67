"""What PyTorch's launcher (`torchrun`) says about this process; without torch, so it is quick."""

from __future__ import annotations

import os


def asked_for() -> bool:
    """Whether a launcher has started several processes."""
    return _number("WORLD_SIZE", 1) > 1


def place() -> int:
    """The number of this process, from 0."""
    return _number("RANK", 0) if asked_for() else 0


def place_on_machine() -> int:
    """The number of this process among those of its machine, from 0."""
    return _number("LOCAL_RANK", 0) if asked_for() else 0


def is_first() -> bool:
    """Whether this process is the one that writes files and speaks."""
    return place() == 0


def restarted() -> bool:
    """Whether the launcher has started the processes anew, after one of them had ended."""
    return asked_for() and _number("TORCHELASTIC_RESTART_COUNT", 0) > 0


def _number(name: str, default: int) -> int:
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() else default
