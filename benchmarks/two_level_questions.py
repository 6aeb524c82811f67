"""Time of the next word with two-level transitions: 1,048,576 states in 4,096 blocks.

    python benchmarks/two_level_questions.py --device cuda

The model has random parameters, which do not change the cost of the whole distribution of the next
word. How many blocks the ten likeliest words need depends on how concentrated the probabilities of
blocks are; logits of blocks have a standard deviation of --spread. The state after the context is
computed before. The times are the shortest and the median of some repeats, each after another
context. No figures are given unless probabilities sum to one, the likeliest words are those of the
whole distribution, and their probabilities agree with those of whole texts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
import tyro
from torch import Tensor

from bighmm import HMM
from bighmm.infer.predict import best_next_tokens
from bighmm.model.support import Blocked
from bighmm.model.transitions import TwoLevel
from bighmm.ops.rounding import round_to_bfloat16
from record import save, settings_of, surroundings


@dataclass(frozen=True)
class Shape:
    device: Literal["cpu", "cuda"] = "cpu"
    states: int = 2**20
    blocks: int = 4_096
    width: int = 128
    words: int = 10_000
    spread: float = 2.0
    """Standard deviation of the logits of blocks."""
    likeliest: int = 10
    """Words that are asked for."""
    repeats: int = 10
    out: str = "bench/two_level_questions.json"
    """File for the figures, under results/."""


def main(shape: Shape) -> None:
    hmm = _random_hmm(shape)
    _check(hmm, shape)
    questions: dict[str, Callable[[Any], Any]] = {
        "next_token": hmm.next_token_after,
        "best_next": lambda carry: best_next_tokens(hmm, carry, shape.likeliest),
    }
    rows = []
    for name, ask in questions.items():
        if shape.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        seconds = []
        for repeat in range(shape.repeats + 1):
            carry = hmm.carry_after(_context(shape, seed=repeat))
            _finish(shape)
            began = time.perf_counter()
            ask(carry)
            _finish(shape)
            seconds.append(time.perf_counter() - began)
        shortest, median = (1e3 * f(seconds[1:]) for f in (min, statistics.median))
        peak = torch.cuda.max_memory_allocated() / 2**30 if shape.device == "cuda" else None
        print(f"{name}: {shortest:.1f} ms, median {median:.1f}")
        rows.append(
            {
                "operation": name,
                **settings_of(shape),
                "milliseconds": shortest,
                "median_milliseconds": median,
                "peak_gib": peak,
                **surroundings(),
            }
        )
    print(f"saved to {save(shape.out, rows)}")


def _random_hmm(shape: Shape) -> HMM:
    """States with logits of standard deviation 1, and random blocks of words."""
    device = torch.device(shape.device)
    torch.manual_seed(0)
    block_of = torch.arange(shape.words)[torch.randperm(shape.words)] % shape.blocks
    support = Blocked.of(block_of.to(device), shape.states)

    def normal(count: int, scale: float = 1.0) -> Tensor:
        return torch.randn(count, shape.width, device=device) * (scale / shape.width**0.25)

    vectors = [normal(shape.states) for _ in range(3)] + [normal(shape.blocks, shape.spread)]
    if shape.device == "cuda":  # as models on a GPU are
        vectors = [round_to_bfloat16(x) for x in vectors]
    bias = torch.zeros(shape.blocks, device=device)
    transitions = TwoLevel(*vectors, bias, rounded=shape.device == "cuda")
    logits = torch.randn(shape.words, support.states_per_token, device=device)
    totals = torch.zeros(shape.blocks, support.states_per_token, device=device)
    totals.index_add_(0, support.blocks.block_of, logits.exp())
    emission = logits - totals.log()[support.blocks.block_of]
    start = torch.randn(shape.states, device=device).log_softmax(0)
    return HMM(start, transitions, emission, support)


def _context(shape: Shape, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(shape.words, (1, 8), generator=generator)


def _check(hmm: HMM, shape: Shape) -> None:
    context = _context(shape, seed=0)
    whole = hmm.next_token(context)
    torch.testing.assert_close(whole.exp().sum().item(), 1.0, rtol=0, atol=1e-4)
    best = hmm.best_next(context, shape.likeliest)
    expected = whole.topk(shape.likeliest)
    torch.testing.assert_close(best.log_prob, expected.values, rtol=0, atol=1e-3)
    longer = torch.cat([context.repeat(shape.likeliest, 1), best.tokens.cpu().T], dim=1)
    of_text = hmm.log_prob(longer) - hmm.log_prob(context)
    torch.testing.assert_close(best.log_prob[0], of_text, rtol=0, atol=1e-3)


def _finish(shape: Shape) -> None:
    if shape.device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main(tyro.cli(Shape))
