"""The package's front door."""

import subprocess
import sys

import pytest

import bighmm


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
