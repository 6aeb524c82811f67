"""The package's front door."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import bighmm
from versions import lowest

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


def test_every_dependency_has_a_lowest_version():
    """`make test-versions` tests with these."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    for lines in (project["dependencies"], *(extras[name] for name in ("teachers", "plot"))):
        assert len(lowest(lines)) == len(lines)
    assert lowest(["torch>=2.8", "mkdocstrings[python]>=0.26", "x"]) == {
        "torch": "2.8",
        "mkdocstrings": "0.26",
    }
