"""Processes of a command that do one piece of work together, as PyTorch's launcher starts them."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Sequence


def start_together(command: Sequence[str], count: int, **variables: str) -> list[subprocess.Popen]:
    """Start so many processes of a command on this machine; more variables of the environment."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    known = {**os.environ, **variables, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    known |= {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    return [
        subprocess.Popen(command, env={**known, "RANK": str(n), "LOCAL_RANK": str(n)})
        for n in range(count)
    ]
