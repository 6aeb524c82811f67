"""The kernels compile for a GPU, on a machine without one."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")


def test_kernels_compile(tmp_path):
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    script = Path(__file__).with_name("compile_kernels.py")
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    kernels = Path(script).resolve().parents[2] / "src" / "bighmm" / "kernels"
    for file in kernels.glob("*_triton.py"):
        source = file.read_text(encoding="utf-8")
        launched = [part.split("[")[0] for part in source.split("    _")[1:] if "[(" in part[:40]]
        for name in launched:
            assert f"'_{name}'" in done.stdout, f"_{name} of {file.name} was not compiled"
