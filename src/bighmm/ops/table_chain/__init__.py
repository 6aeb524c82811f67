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

from bighmm.ops.table_chain.tables import Counted, Matrix, Rows, Start, Tables, Words

__all__ = ["LARGEST", "Counted", "Matrix", "Rows", "Start", "Tables", "Words", "compiled"]

LARGEST = 2**11  # states; a step of more is a product that torch does as well


@cache
def compiled() -> ModuleType:
    """The module `questions`; numba is imported at the first call."""
    from bighmm.ops.table_chain import questions

    return questions
