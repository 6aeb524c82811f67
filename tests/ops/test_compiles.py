"""The kernels compile for a GPU, on a machine without one."""

import json
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
        for part in ("blocked", "blocks", "others")
    ]
    compiled, kernels = set(), set()
    for process in running:
        out, err = process.communicate()
        assert process.returncode == 0, err
        found = json.loads(out)
        compiled |= set(found["compiled"])
        kernels |= set(found["kernels"])
    assert len(kernels) > 20 and kernels <= compiled, kernels - compiled
