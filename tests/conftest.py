import io
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bighmm.answers.objects import VERSION
from bighmm.cli.main import main

sys.path.insert(0, str(Path(__file__).parent))
os.environ.setdefault("HF_HUB_OFFLINE", "1")
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # kernels run on the CPU, slowly
torch.set_num_threads(1)  # tests are small, and threads wait for each other


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's corpus cache."""
    monkeypatch.setenv("BIGHMM_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(autouse=True)
def _no_waiting_for_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flushing is against a loss of power, which no test stages, and takes most of a small save."""
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


@pytest.fixture
def bighmm(capsys, monkeypatch):
    """bighmm(arguments, stdin) gives the status, standard output and standard error."""

    def bighmm(*arguments: object, stdin: bytes = b"") -> SimpleNamespace:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        capsys.readouterr()
        status = 0
        try:
            main([str(word) for word in arguments])
        except SystemExit as end:
            status = 0 if end.code is None else end.code
        captured = capsys.readouterr()
        return SimpleNamespace(status=status, out=captured.out, err=captured.err)

    return bighmm


@pytest.fixture
def ask(bighmm):
    """The one JSON object that a command prints with --json."""

    def ask(*arguments: object, stdin: bytes = b"") -> dict:
        done = bighmm(*arguments, "--json", stdin=stdin)
        assert done.status == 0, done.err
        assert done.out.endswith("\n") and done.out.count("\n") == 1
        found = json.loads(done.out, parse_constant=lambda name: pytest.fail(name))
        assert isinstance(found, dict) and found["version"] == VERSION
        return found

    return ask
