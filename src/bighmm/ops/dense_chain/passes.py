"""What transitions and emissions contribute to one pass of `dense_chain`, forward and backward.

A pass object is used once: it keeps what its backward part needs.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from bighmm.ops.matmul import as_operand, matmul


class TransitionPass(Protocol):
    def matrix(self, with_backward: bool, *operands: Tensor) -> tuple[Tensor, Tensor]:
        """p(j | i) (Z, Z) as the sweeps multiply it, and its row sums (Z,) float32."""
        ...

    def gradients(self, left: Tensor, entered: Tensor, matrix: Tensor) -> tuple[Tensor, ...]:
        """Gradients of the operands; (leftᵀ · entered) ∘ matrix are the expected moves, for factors
        left and entered (N, Z).
        """
        ...


class EmissionPass(Protocol):
    def logits(
        self, with_backward: bool, ids: Tensor, *operands: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(N, Z) for the words ids (N,), a shift (N,) and a norm (Z,):
        log p(x | z) = logits + shift − norm.
        """
        ...

    def gradients(self, used: Tensor, in_all: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        """Gradients of the operands, from the weighted p(z_t | x) (N, Z), its sums over N (Z,) and
        over Z (N,).
        """
        ...


class FactoredTransitions:
    """Logits leaving · enteringᵀ, operands (Z, H) each."""

    def matrix(self, with_backward: bool, *operands: Tensor) -> tuple[Tensor, Tensor]:
        from bighmm.ops.dense_chain import triton
        from bighmm.ops.row_norm import triton as row_norms

        self.leaving, self.entering = map(as_operand, operands)
        self.norm, self.mean = row_norms.forward(self.leaving, self.entering, None, with_backward)
        return triton.make_matrix(self.leaving, self.entering, self.norm)

    def gradients(self, left: Tensor, entered: Tensor, matrix: Tensor) -> tuple[Tensor, ...]:
        from bighmm.ops.dense_chain import triton
        from bighmm.ops.row_norm import triton as row_norms

        assert self.mean is not None, "the forward pass was asked for gradients"
        counts = left.T @ entered
        of_norm = -triton.weigh_matrix(counts, matrix)
        of_entering, _ = row_norms.backward(self.leaving, self.entering, None, self.norm, of_norm)
        of_entering += matmul(counts.T, self.leaving)
        of_leaving = matmul(counts, self.entering) + of_norm.unsqueeze(1) * self.mean
        return of_leaving, of_entering


class TableTransitions:
    """Logits (Z, Z), or log-probabilities whose gradient is the expected moves themselves."""

    def __init__(self, normalised: bool = False) -> None:
        self.normalised = normalised

    def matrix(self, with_backward: bool, *operands: Tensor) -> tuple[Tensor, Tensor]:
        from bighmm.ops.dense_chain.triton import LEAST

        (table,) = operands
        probs = table.exp() if self.normalised else table.softmax(1)
        probs = probs.clamp_(min=LEAST).masked_fill_(table == -torch.inf, 0.0)
        rounded = as_operand(probs)
        return rounded, rounded.sum(1, dtype=torch.float32)

    def gradients(self, left: Tensor, entered: Tensor, matrix: Tensor) -> tuple[Tensor, ...]:
        moves = matmul(left.T, entered) * matrix
        if self.normalised:
            return (moves,)
        return (torch.addcmul(moves, -moves.sum(1, keepdim=True), matrix.float()),)


class FactoredEmissions:
    """Logits emit_z · words_x + bias_x; operands (Z, H), (V, H) and (V,)."""

    def logits(
        self, with_backward: bool, ids: Tensor, *operands: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        from bighmm.ops.row_norm import triton as row_norms

        emit, words, self.bias = operands
        self.ids, self.emit, self.words = ids, as_operand(emit), as_operand(words)
        self.norm, self.mean = row_norms.forward(self.emit, self.words, self.bias, with_backward)
        self.at = self.words.index_select(0, ids)
        return matmul(self.at, self.emit.T), self.bias.index_select(0, ids), self.norm

    def gradients(self, used: Tensor, in_all: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        from bighmm.ops.row_norm import triton as row_norms

        assert self.mean is not None, "the forward pass was asked for gradients"
        of_words, of_bias = row_norms.backward(self.emit, self.words, self.bias, self.norm, -in_all)
        of_words.index_add_(0, self.ids, matmul(used, self.emit))
        of_bias.index_add_(0, self.ids, weights)
        of_emit = matmul(used.T, self.at) - in_all.unsqueeze(1) * self.mean
        return of_emit, of_words, of_bias


class TableEmissions:
    """log p(x | z) (V, Z), normalised."""

    def logits(
        self, with_backward: bool, ids: Tensor, *operands: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        (table,) = operands
        self.ids, self.shape = ids, table.shape
        no_shift, no_norm = table.new_zeros(len(ids)), table.new_zeros(table.shape[1])
        return table.index_select(0, ids), no_shift, no_norm

    def gradients(self, used: Tensor, in_all: Tensor, weights: Tensor) -> tuple[Tensor, ...]:
        of_table = torch.zeros(self.shape, device=used.device)
        return (of_table.index_add_(0, self.ids, used.float()),)
