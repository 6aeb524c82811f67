"""The parameterisation of two-level transitions by networks, or by embeddings alone.

A state has one more role than with flat transitions, to choose the next block. The start
distribution is that of a state before the first, which has vectors of its own to choose a block and
to leave. Nothing is normalised over more than the blocks or the states of one block, so a model can
be computed for some blocks alone.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from bighmm.model.model import Model
from bighmm.model.options import NeuralOptions
from bighmm.model.params import blocks_of
from bighmm.model.params.neural import WIDEST, Neural
from bighmm.model.support import Support
from bighmm.model.transitions import TwoLevel
from bighmm.ops.impl import use_triton
from bighmm.ops.present_blocks import Present
from bighmm.ops.residual import scores
from bighmm.ops.rounding import round_to_bfloat16

SMALL = 2**20  # numbers of a table of state vectors


class TwoLevelNeural(Neural):
    """`Neural` with transitions in two levels, for a support with blocks."""

    calibrates = ("blocks", "moves", "words")

    def __init__(self, options: NeuralOptions, support: Support, end: int | None) -> None:
        partition = blocks_of(support)
        super().__init__(options, support, end)
        blocks, width = partition.num_blocks, self.options.width
        self.blocks = nn.Parameter(torch.randn(blocks, width) * self.options.init_scale)
        self.block_bias = nn.Parameter(torch.zeros(blocks))

    @property
    def cpu_threads(self) -> int | None:
        """A step of a small model is hundreds of operations too short to share (docs/log.md)."""
        return 1 if self.support.num_states * self.options.width <= SMALL else None

    @property
    def for_some_blocks(self) -> bool:
        """Not where a state's vectors depend on all others, or emissions are a table; on a GPU only
        with kernels, which need not be told how many blocks there are."""
        options = self.options
        kernels = self.rounds and options.width <= WIDEST
        with_kernels = kernels or not use_triton(self.blocks)
        return with_kernels and options.network == "mlp" and options.emission == "factored"

    def forward(self, kept: Tensor | None = None, present: Present | None = None) -> Model:
        """present: the blocks that `kept` are states of, if not of all."""
        support = self.support
        if kept is not None and present is not None:
            support = support.restrict_to_blocks(kept, present)
        elif kept is not None:
            support = support.restrict(kept)
        blocks_here = None if present is None else present.blocks
        vectors = self._vectors(kept, blocks_here)
        size = support.states_per_token
        start = self._start(vectors, kept).view(-1, size).log_softmax(1)
        first = torch.mv(self.blocks, self.before_choice) + self.block_bias
        first = first.log_softmax(0)
        if blocks_here is not None:
            first = first.index_select(0, blocks_here)
        start = (start + first.unsqueeze(1)).view(-1)
        choosing = vectors["leaving" if self.options.choosing == "leaving" else "choosing"]
        blocks = self.calibrated(self.blocks, "blocks")
        blocks = round_to_bfloat16(blocks) if self.rounds else blocks
        transitions = TwoLevel(
            self.calibrated(vectors["leaving"], "moves", rounds=True),
            vectors["entering"],
            choosing,
            blocks,
            self.calibrated(self.block_bias, "blocks"),
            self.rounds and self.options.width <= WIDEST,
            blocks_here,
        )
        emissions = self._emissions(vectors, support, kept)
        return Model(start, transitions, emissions, support, self.end)

    def _roles(self) -> list[str]:
        roles = ["leaving", "entering"]
        if self.options.choosing == "own":
            roles.append("choosing")
        return roles + (["emit"] if self.options.emission == "factored" else [])

    def _add_start(self) -> None:
        options = self.options
        scale = options.init_scale
        if options.start == "direct":
            super()._add_start()
        else:
            self.before_first = nn.Parameter(torch.randn(options.width) * scale)
        self.before_choice = nn.Parameter(torch.randn(options.width) * scale)

    def _start(self, vectors: dict[str, Tensor], kept: Tensor | None) -> Tensor:
        """Logits within the blocks."""
        if self.options.start == "direct":
            return self.start if kept is None else self.start.index_select(0, kept)
        return scores(vectors["entering"].contiguous(), self.before_first, self.impl)
