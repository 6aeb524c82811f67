"""Several processes on one cache, one run and one folder of labels, as `make stress` does."""

import importlib
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"


@pytest.fixture(scope="module")
def stress():
    """The module benchmarks/stress.py, which its processes can import too."""
    sys.path.insert(0, str(BENCHMARKS))
    yield importlib.import_module("stress")
    sys.path.remove(str(BENCHMARKS))


def test_several_processes(stress, tmp_path):
    arguments = stress.Arguments(processes=(4,), repeats=1, commands=0, flush=False)
    rows = stress.stress(arguments, tmp_path)
    assert [row["failures"] for row in rows if row["repeats"]] == [[]] * 8
    assert {row["kind"] for row in rows} == {"empty cache", "damaged cache", "run", "labels"}
    together = [row["statuses"] for row in rows if row["mode"] == "together"]
    assert together[:3] == [{"0": 4}, {"0": 4}, {"0": 1, "2": 3}]  # two caches, and a run
