"""Kernels compiled at the same time, in a process whose Triton has a driver without a device."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton.runtime._async_compile")

PROGRAM = """
import torch
import compile_kernels  # which sets the driver
from triton.runtime.jit import JITFunction
from bighmm.ops.compiling import can_compile_together, compiled_together
from bighmm.ops.rounding import triton as roundings

JITFunction.__getitem__ = lambda self, grid: (
    lambda *args, **options: self.run(*args, grid=grid, warmup=False, **options)
)
run = JITFunction.run
assert can_compile_together()
with compiled_together():
    found, operand = roundings.to_bfloat16_values(torch.ones(100))
    assert not found.any() and not operand.any()  # nothing has run
    assert not torch.empty(1000, dtype=torch.long).any()
assert JITFunction.run is run
(kernel,) = roundings._round.device_caches[0][0].values()
print(kernel.metadata.name)
"""


def test_compiled_and_not_run(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=Path(__file__).parent,
        env={"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.returncode) == ("_round\n", 0), done.stderr
