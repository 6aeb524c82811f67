"""What PyTorch's launcher (`torchrun`) says about this process; without torch, so it is quick."""

from __future__ import annotations

import os

# What a launcher sets; a process that works for itself is started without them.
VARIABLES = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE"),
    *("LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID"),
    *("TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE"),
)


class Said(ValueError):
    """A mistake of which another process has told the user; this one ends without a word."""


def asked_for() -> bool:
    """Whether a launcher has started several processes."""
    return _number("WORLD_SIZE", 1) > 1


def place() -> int:
    """The number of this process, from 0."""
    return _number("RANK", 0) if asked_for() else 0


def place_on_machine() -> int:
    """The number of this process among those of its machine, from 0."""
    return _number("LOCAL_RANK", 0) if asked_for() else 0


def number_on_machine() -> int:
    """How many processes the launcher has started on this machine."""
    return _number("LOCAL_WORLD_SIZE", _number("WORLD_SIZE", 1)) if asked_for() else 1


def is_first() -> bool:
    """Whether this process is the one that writes files and speaks."""
    return place() == 0


def restarted() -> bool:
    """Whether the launcher has started the processes anew, after one of them had ended."""
    return restarts() > 0


def restarts() -> int:
    """How often the launcher has started the processes anew."""
    return _number("TORCHELASTIC_RESTART_COUNT", 0) if asked_for() else 0


def environment_alone() -> dict[str, str]:
    """The environment for a process that does its own work, whoever has started this one."""
    return {name: value for name, value in os.environ.items() if name not in VARIABLES}


def _number(name: str, default: int) -> int:
    value = os.environ.get(name, "")
    return int(value) if value.isdecimal() else default
