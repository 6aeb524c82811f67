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
    running = [  # at the same time
        subprocess.Popen(
            [sys.executable, str(script), part],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for part in ("blocked", "others")
    ]
    shown = ""
    for process in running:
        out, err = process.communicate()
        assert process.returncode == 0, err
        shown += out
    kernels = Path(script).resolve().parents[2] / "src" / "bighmm" / "kernels"
    for file in kernels.glob("*_triton.py"):
        source = file.read_text(encoding="utf-8")
        launched = [part.split("[")[0] for part in source.split("    _")[1:] if "[(" in part[:40]]
        for name in launched:
            assert f"'_{name}'" in shown, f"_{name} of {file.name} was not compiled"
