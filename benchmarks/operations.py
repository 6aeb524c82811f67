"""Operations that `gpu.py` measures on a GPU, each with a check of its result.

An operation is a function of the number of states that returns a `Measured`: `run` does the work,
`flop` is the number of operations of the necessary matrix products, `error` is the difference of
the result from plain torch in this run, and `tolerance` is the largest error allowed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from bighmm.data.batches import Batch
from bighmm.data.clusters import brown_clusters
from bighmm.data.corpus import prepare
from bighmm.hmm import HMM
from bighmm.infer.filter import can_be_captured
from bighmm.infer.sequences import Carry, unchecked
from bighmm.model import params
from bighmm.model.emissions import EmissionTable
from bighmm.model.options import NeuralOptions
from bighmm.model.support import Blocked, Dense, PerToken, Support
from bighmm.ops.rounding import round_to_bfloat16
from bighmm.ops.row_adamw import Moments, Rates, update_rows
from bighmm.ops.row_norm import row_norm
from bighmm.train.captured import CapturedRunner
from bighmm.train.losses import Likelihood
from bighmm.train.recipe import TrainingSettings
from bighmm.train.runner import EagerRunner, Runner
from bighmm.train.update import Descent

DEVICE = torch.device("cuda")
DATA: str | None = None  # a corpus for the blocked step; None: random text and blocks


@dataclass(frozen=True)
class Measured:
    run: Callable[[], object]
    flop: float
    error: Callable[[], float]
    tolerance: float
    capture: bool = False  # whether `run` can be captured as a graph; then the graph is timed
    details: dict[str, Any] = field(default_factory=dict)  # of the configuration, for the result


@dataclass(frozen=True)
class Operation:
    make: Callable[[int], Measured]
    states: tuple[int, ...]
    peer: str | None = None
    beside: str | None = None  # an operation of which the same sizes are measured in the same run


OPERATIONS: dict[str, Operation] = {}


def operation(
    name: str, states: tuple[int, ...], peer: str | None = None, beside: str | None = None
) -> Callable[[Callable[[int], Measured]], Callable[[int], Measured]]:
    def add(make: Callable[[int], Measured]) -> Callable[[int], Measured]:
        OPERATIONS[name] = Operation(make, states, peer, beside)
        return make

    return add


@operation("normaliser", (2**12, 2**13, 2**14, 2**15, 2**16))
def normaliser(active: int) -> Measured:
    """The streamed row normaliser over `active` states, width 256, forward and backward."""
    width = 256
    leaving = round_to_bfloat16(torch.randn(active, width, device=DEVICE)).requires_grad_()
    entering = round_to_bfloat16(torch.randn(active, width, device=DEVICE) * 0.1).requires_grad_()
    grad = torch.rand(active, device=DEVICE)

    def run() -> tuple[Tensor, ...]:
        norm = row_norm(leaving, entering, impl="triton")
        return (norm, *torch.autograd.grad(norm, (leaving, entering), grad))

    def error() -> float:
        norm, of_leaving, _ = run()
        rows = torch.randint(active, (64,), device=DEVICE)
        logits = leaving.detach()[rows].double() @ entering.detach().double().T
        off = (norm.detach()[rows] - logits.logsumexp(1)).abs().max()
        exact = grad[rows].double().unsqueeze(1) * (logits.softmax(1) @ entering.detach().double())
        return max(float(off), float((of_leaving[rows] - exact).norm() / exact.norm().detach()))

    return Measured(run, 8.0 * active**2 * width, error, 5e-3, capture=True)


@operation("row_adamw", (2**16, 2**18, 2**20))
def row_adamw(states: int) -> Measured:
    """AdamW on one table of width 256, of whose rows an eighth had a gradient."""
    width, touched = 256, states // 8
    generator = torch.Generator(DEVICE).manual_seed(1)
    table = torch.randn(states, width, device=DEVICE, generator=generator)
    rows = torch.randperm(states, device=DEVICE, generator=generator)[:touched]
    grad = torch.randn(touched, width, device=DEVICE, generator=generator)
    steps = torch.zeros(states, dtype=torch.int32, device=DEVICE)
    moments = Moments(torch.zeros_like(table), torch.zeros_like(table), steps)
    rates = Rates(torch.tensor(1e-3, device=DEVICE), 0.9, 0.999, 1e-8, 0.01)

    def run() -> None:
        update_rows(table, moments, rows, grad, rates)

    def error() -> float:
        """Of a step of 64 rows, against plain torch in float64."""
        some, before = rows[:64], table[rows[:64]].double()
        own = [x[some] for x in (moments.first, moments.second, moments.steps)]
        exact, twin = before.clone(), Moments(own[0].double(), own[1].double(), own[2].clone())
        update_rows(exact, twin, None, grad[:64].double(), rates)
        update_rows(table, moments, some, grad[:64], rates)
        return float((table[some] - exact).norm() / (exact - before).norm())

    return Measured(run, 0.0, error, 1e-3, capture=True)


class Language:
    """A stand-in for a language model: parameters on the device, with batches of random text."""

    def __init__(
        self,
        kind: str,
        support: Support,
        shape: tuple[int, int],
        end: int,
        text: Tensor | None,
        options: dict[str, Any],
    ) -> None:
        batch, window = shape
        options = params.find(kind).options(**options)
        self.params = params.build(kind, options, support, end, seed=1).to(DEVICE)
        self.params.matmul_dtype = "bfloat16"
        self.shape = shape
        self.steps_per_epoch = 10**9
        self.tokens_per_step = batch * window
        if text is None:
            generator = torch.Generator().manual_seed(1)
            weights = 1.0 / torch.arange(1, support.vocabulary_size + 1)  # Zipf's law
            text = torch.multinomial(weights, 64 * batch * window, True, generator=generator)
        streams = text[: 64 * batch * window].view(batch, 64, window)
        self.ids = streams.transpose(0, 1).contiguous()

    def rate(self, step: int) -> float:
        return 1e-3

    def runner(self, dropout: float, rows: Literal["all", "touched"]) -> Runner:
        settings = TrainingSettings(state_dropout=dropout, seed=1, rows=rows)
        loss = Likelihood(self.params, dropout)
        update = Descent(self.params, loss, settings, self)  # type: ignore[arg-type]
        with torch.no_grad():
            capture = can_be_captured(self.params())
        return CapturedRunner(update, self, 1) if capture else EagerRunner(update, self, 1)

    def batch(self, step: int) -> Batch:
        ids = self.ids[step % 64]
        lengths = torch.full((len(ids),), ids.shape[1])
        return Batch(ids.numpy(), lengths.numpy(), continues=step % 64 > 0)


def training_step(
    support: Support,
    shape: tuple[int, int],
    dropout: float,
    flop: float,
    text: Tensor | None = None,
    end: int = 0,
    kind: str = "neural",
    rows: Literal["all", "touched"] = "all",
    **options: Any,
) -> Measured:
    language = Language(kind, support, shape, end, text, options)
    runner = language.runner(dropout, rows)
    runner.run(0, 64)  # so that every slot of the buffers has a batch
    if isinstance(runner, CapturedRunner):
        (graph,) = runner.graphs.values()

    replays = itertools.count()

    def run() -> None:
        if not isinstance(runner, CapturedRunner):
            runner.run(next(replays) % 64, 1)
            return
        with torch.cuda.stream(runner.stream):
            if next(replays) % 64 == 0:
                runner.place.zero_()
            graph.replay()

    def error() -> float:
        """The error of the log-likelihood of a few rows, against plain torch in float32."""
        with torch.no_grad():
            hmm = HMM.of(language.params())
            ids = language.ids[0, :4, :16].to(DEVICE)
            window = unchecked(hmm, ids, torch.full((4,), 16, device=DEVICE))
            fast, _ = hmm.advance(window, Carry.at_start(hmm, 4))
            plain_transitions = replace(hmm.transitions, rounded=False)  # type: ignore[type-var]
            emissions = EmissionTable(hmm.emission)
            plain = HMM(hmm.start, plain_transitions, emissions, support, end)
            slow, _ = plain.advance(window, Carry.at_start(plain, 4), "torch")
        if not all(math.isfinite(done.loss) for done in runner.run(64, 64)):
            return math.inf
        return float(((fast - slow) / slow).abs().max())

    blocks = support.partition
    details = {"batch": shape, "state_dropout": dropout, "rows": rows, **options}
    if blocks is not None:
        details |= {"blocks": blocks.num_blocks}
    return Measured(run, flop, error, 2e-3, details=details)


def ptb_like_blocks(words: int = 10_000, blocks: int = 128) -> Tensor:
    """Blocks with sizes as those of Brown clusters of the Penn Treebank: 1 to about 560 words."""
    sizes = torch.exp(torch.linspace(0.0, math.log(560.0), blocks))
    sizes = (sizes * (words - blocks) / sizes.sum()).long() + 1
    sizes[-1] += words - int(sizes.sum())
    return torch.repeat_interleave(torch.arange(blocks), sizes)


@operation("blocked_step", (2**14, 2**15, 2**16, 2**17))
def blocked_step(states: int) -> Measured:
    """A whole training step with flat transitions: batch 16 × 32, 128 blocks, width 256, half of
    the states dropped."""
    support, text, end = blocked_text(states, 128)
    active, alive = states // 2, states // 256
    flop = 8.0 * active**2 * 256 + 6.0 * 512 * alive**2 * 256
    return training_step(support, (16, 32), 0.5, flop, text, end, transitions="flat")


BLOCKS = {2**15: 128, 2**17: 512, 2**18: 1024, 2**20: 4096}


@operation("two_level_step", (2**15, 2**17, 2**20), beside="blocked_step")
def two_level_step(states: int) -> Measured:
    """The same with two-level transitions, in more blocks where there are more states."""
    return two_level(states, 16, 0.5)


def two_level(states: int, rows: int, dropout: float) -> Measured:
    """A training step with so many rows of 32 words."""
    blocks = BLOCKS[states]
    support, text, end = blocked_text(states, blocks, rows)
    alive = states // blocks - round(dropout * (states // blocks))
    flop = 18.0 * rows * 32 * alive**2 * 256
    options = {"transitions": "two-level", "start": "direct"}
    return training_step(support, (rows, 32), dropout, flop, text, end, rows="touched", **options)


for _rows in (16, 32, 64, 128):  # as in training on much text: a quarter of the states dropped
    operation(f"two_level_step_{_rows}_rows", (2**15, 2**17, 2**18))(
        partial(two_level, rows=_rows, dropout=0.25)
    )


def blocked_text(states: int, blocks: int, rows: int = 16) -> tuple[Blocked, Tensor | None, int]:
    """A support, text for 64 steps and the end mark: of the corpus DATA, or random."""
    block_of, text, end = ptb_like_blocks(blocks=blocks), None, 0
    if DATA is not None:
        corpus = prepare(DATA)
        block_of = torch.from_numpy(brown_clusters(corpus, blocks).classes.astype("int64"))
        text = torch.from_numpy(corpus.split("train")[: 64 * rows * 32].astype("int64"))
        end = corpus.tokenizer.end
    return Blocked.of(block_of, states).to(DEVICE), text, end


@operation("scalar_step", (2**12, 2**14))
def scalar_step(states: int) -> Measured:
    """A whole training step with tables of logits: batch 16 × 32, 128 blocks, half dropped."""
    support = Blocked.of(ptb_like_blocks(), states).to(DEVICE)
    return training_step(support, (16, 32), 0.5, 0.0, kind="scalar")


@operation("per_token_step", (2**13, 2**14))
def per_token_step(states: int) -> Measured:
    """A whole training step where each of 10,000 words has its own 128 states, half dropped."""
    support = PerToken.random(10_000, states, 128, seed=1).to(DEVICE)
    flop = 8.0 * (states // 2) ** 2 * 256 + 6.0 * 512 * 128**2 * 256
    return training_step(support, (16, 32), 0.5, flop)


@operation("dense_step", (512, 1024, 4096, 16384))
def dense_step(states: int) -> Measured:
    """A whole training step: 32,000 words, batch 256 × 64, width 256, every state alive."""
    tokens, words = 256 * 64, 32_000
    flop = 6.0 * tokens * states**2 + 8.0 * states * words * 256 + 8.0 * states**2 * 256
    return training_step(Dense(states, words), (256, 64), 0.0, flop)


@operation("lee_step", (128, 256, 512), peer="plain torch, as Lee & Berg-Kirkpatrick's step")
def lee_step(states: int) -> Measured:
    """The forward recursion in log space under autograd: a (batch, states, states) sum per word."""
    words, batch, time = 32_000, 200, 64
    support = Dense(states, words)
    model = params.build("neural", NeuralOptions(), support, None, seed=1).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    ids = torch.randint(words, (batch, time), device=DEVICE)

    def log_prob() -> Tensor:
        hmm = model()
        log_moves = hmm.transitions.log_probs()
        emitted = hmm.emission[ids]  # (B, T, Z)
        alpha = hmm.start + emitted[:, 0]
        for t in range(1, time):
            alpha = (alpha.unsqueeze(2) + log_moves).logsumexp(1) + emitted[:, t]
        return alpha.logsumexp(1)

    def run() -> None:
        loss = -log_prob().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def error() -> float:
        with torch.no_grad():
            found = log_prob()[:4]
            return float(((found - HMM.of(model()).log_prob(ids[:4])) / found).abs().max())

    return Measured(run, 6.0 * batch * time * states**2, error, 1e-3)
