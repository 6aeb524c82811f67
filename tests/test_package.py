"""The package's front door."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import bighmm

ROOT = Path(__file__).resolve().parent.parent


def test_public_names():
    assert set(bighmm.__all__) == {
        *("HMM", "HMMLM", "BestPath", "Posterior", "SequenceHMM", "baum_welch")
    }
    for name in bighmm.__all__:
        assert getattr(bighmm, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = bighmm.nothing


def test_help_does_not_wait_for_torch():
    code = "import sys; from bighmm.cli.main import main\ntry: main(['--help'])\n"
    code += "except SystemExit: print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.endswith("False\n")


def test_the_lowest_versions_are_those_of_the_ranges():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (ROOT / "constraints-lowest.txt").read_text(encoding="utf-8").splitlines()
    lowest = dict(line.split("==") for line in lines if not line.startswith("#"))
    for line in project["dependencies"]:
        name, version = re.fullmatch(r"([\w-]+)>=([\d.]+)", line).groups()
        assert lowest[name] == version or lowest[name].startswith(f"{version}."), line
