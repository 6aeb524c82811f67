"""Every benchmark starts: its imports exist and its help can be shown."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
SCRIPTS = sorted(
    path.name for path in BENCHMARKS.glob("*.py") if "__main__" in path.read_text(encoding="utf-8")
)
NEEDS = {"guide.py": ("transformers",), "plot.py": ("matplotlib",)}


def test_there_are_benchmarks():
    assert {"gpu.py", "em_pass.py", "training.py"} <= set(SCRIPTS)


@pytest.mark.parametrize("script", SCRIPTS)
def test_help(script):
    for package in NEEDS.get(script, ()):
        pytest.importorskip(package)
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    command = [sys.executable, str(BENCHMARKS / script), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and "usage" in done.stdout, done.stderr
