"""Several processes that tests let work together."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture(scope="session")
def together(tmp_path_factory):
    """A function that lets processes do some runs; gives the status and the words of each."""
    cache = tmp_path_factory.mktemp("cache")
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("several.py"))],
        env={**os.environ, "OMP_NUM_THREADS": "1", "BIGHMM_CACHE": str(cache)}
        | {"TORCH_CPP_LOG_LEVEL": "FATAL"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def ask(count, runs=(), **more):
        request = {"count": count, "port": free_port(), "runs": runs, **more}
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        return json.loads(server.stdout.readline())

    yield ask
    server.communicate()
