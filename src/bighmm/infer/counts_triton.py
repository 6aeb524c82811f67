"""Expected counts of a dense model with the kernels of `dense_triton`, for `counts`.

There the gradient of a transition table is that of logits, from which counts cannot be had back;
here its rows are free numbers, and their gradient is the expected moves themselves.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from bighmm.infer import dense_triton
from bighmm.infer.inputs import Carry, Sequences
from bighmm.ops import product, use_triton

if TYPE_CHECKING:
    from bighmm.hmm import HMM


def fits(hmm: HMM, impl: str) -> bool:
    return use_triton(hmm.start, impl) and dense_triton.fits(hmm)


def count(
    hmm: HMM, tables: tuple[Tensor, ...], window: Sequences, carry: Carry
) -> tuple[Tensor, Carry, tuple[Tensor, ...]] | None:
    """log p(window | what came before) (B,), the state after it, and the counts of the tables.

    tables: log-probabilities of start (Z,), transition (Z, Z) and emission (V, Z). None where
    numbers became so small that mass may have been lost; a graph that is being captured cannot ask.
    """
    batch, time = window.ids.shape
    if time == 0 or batch == 0:
        return None
    with torch.enable_grad():
        log_prob, log_alpha, relative = dense_triton.DenseLogSum.apply(
            window, carry, _FreeMoves(), dense_triton.TableWords(), *tables
        )
    counts = torch.autograd.grad(log_prob.sum(), tables)
    after = carry.then(hmm, window, log_alpha)
    if dense_triton.being_captured(log_prob):
        return log_prob.detach(), after, counts
    least, *totals = torch.stack([relative.min(), *(n.sum() for n in counts)]).tolist()
    if least < dense_triton.SMALLEST_PROB or not all(map(math.isfinite, totals)):
        return None
    return log_prob.detach(), after, counts


class _FreeMoves(dense_triton.TableMoves):
    """A table of log-probabilities, whose rows need no normaliser."""

    def probs(self, table: Tensor) -> Tensor:
        return table.exp()

    def gradients(self, left: Tensor, entered: Tensor, matrix: Tensor) -> tuple[Tensor, ...]:
        return (product(left.T, entered) * matrix,)
