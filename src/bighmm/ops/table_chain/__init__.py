"""Questions about a dense model with few states, in compiled loops on a CPU.

A step of a small model is far less work than the call of one torch operation, so a loop in Python
costs more than what it does. Here the loop over positions is compiled by numba, and around it is as
little Python as possible: a call about a short sequence takes as long as ten calls of torch.

`tables` has what the loops read, `preparing` makes it from tensors, `questions` asks. The loops are
`sums` (forward and backward sweeps), `paths` (best paths), `narrow` (both for very few states),
`draws` (samples), `mixing` (new probabilities). The reference for each is the torch form in
`ops.dense_chain.plain` or in `infer`; answers agree up to rounding, also where probabilities are as
low as they can be. There is no gradient.

Z states, B rows, T positions, U different words.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType

import torch
from torch import Tensor

from bighmm.base.arrays import as_array
from bighmm.base.caching import needs_gradient
from bighmm.ops.impl import use_compiled
from bighmm.ops.table_chain.tables import Counted, Matrix, Rows, Start, Tables, Words

__all__ = [
    "LARGEST",
    "Counted",
    "Matrix",
    "Rows",
    "Start",
    "Tables",
    "Words",
    "compiled",
    "row_log_shares",
]

FEW_CELLS = 2**12  # of a table up to which a compiled loop over it is faster than torch
LARGEST = 2**11  # states; a step of more is a product that torch does as well


def row_log_shares(table: Tensor) -> Tensor:
    """s_ij - log Σ_k exp(s_ik) for a table (Z, Z) of logits s; differentiable.

    torch's logsumexp is twelve operations, and its log_softmax wakes threads that wait for each
    other, which is slow on a busy machine. Small tables need neither.
    """
    if table.numel() > FEW_CELLS or needs_gradient((table,)) or not use_compiled(table):
        return table - table.logsumexp(1, keepdim=True)
    return torch.from_numpy(compiled().log_shares(as_array(table)))


@cache
def compiled() -> ModuleType:
    """The module `questions`; numba is imported at the first call."""
    from bighmm.ops.table_chain import questions

    return questions
