"""Operations on tensors, one folder each.

An operation has a plain form in torch that is easy to read and also runs in float64 (`plain.py`),
where it pays a form in Triton (`triton.py`), and an `__init__.py` with the function that chooses
between them and the autograd function around both. `impl` is "torch", "triton", "compiled" or
"auto": Triton where the tensors are on a GPU and Triton is installed, compiled loops for dense
models on a CPU where numba is installed (`table_chain`). Triton's interpreter (TRITON_INTERPRET=1)
runs the same kernels on a CPU, for tests.

`log_matmul` has products in probability space that are repaired in log space, `memory` how much a
piece of work may hold, `matmul` products in bfloat16 and work on a second stream.
"""

from bighmm.ops.impl import Impl, use_compiled, use_triton

__all__ = ["Impl", "use_compiled", "use_triton"]
