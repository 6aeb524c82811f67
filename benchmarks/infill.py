"""Time of filling the gaps of one sentence on a CPU: 32,768 states in 128 blocks.

    python benchmarks/infill.py

The model has factored transitions and random parameters, which do not change the cost. The row
normalisers of all states are computed before, as when a model is loaded; their time is a figure of
its own. A sentence has 15 words and an end mark, and two gaps of one word that are not adjacent.
Exact results need the parts of the transition matrix on both sides of each gap. Each part is a
product of (states, width) with (width, states / blocks); the time of these products alone is also
measured. The times are the shortest and the median of some repeats, each with other words; --pause
waits between repeats, for machines that others use too. No figures are given unless the
probabilities of the words in a gap agree with those of whole sentences.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import tyro
from torch import Tensor

from bighmm import HMM
from bighmm.model.support import Blocked
from bighmm.model.transitions import Flat
from record import save, settings_of, surroundings


@dataclass(frozen=True)
class Shape:
    states: int = 32_768
    blocks: int = 128
    width: int = 256
    words: int = 10_000
    length: int = 15
    gaps: tuple[int, ...] = (4, 10)
    samples: int = 5
    repeats: int = 15
    pause: float = 0.0
    """Seconds between repeats."""
    out: str = "bench/infill.json"
    """File for the figures, under results/."""


def main(shape: Shape) -> None:
    hmm = _random_hmm(shape)
    began = time.perf_counter()
    _ = hmm.transitions.norm
    loading = time.perf_counter() - began
    _check(hmm, shape)
    questions: dict[str, Callable[[Tensor], Any]] = {
        "products": lambda text: _products(hmm, shape),
        "fill": lambda text: hmm.fill(text, shape.samples),
        "fill_probs": hmm.fill_probs,
        "best_fill": lambda text: hmm.best_fill(text, shape.samples),
    }
    seconds: dict[str, list[float]] = {name: [] for name in questions}
    for repeat in range(shape.repeats + 1):
        time.sleep(shape.pause)
        for name, ask in questions.items():
            text = _sentence(shape, seed=repeat)
            began = time.perf_counter()
            ask(text)
            seconds[name].append(time.perf_counter() - began)
    rows = []
    for name in questions:
        shortest, median = (1e3 * f(seconds[name][1:]) for f in (min, statistics.median))
        print(f"{name}: {shortest:.0f} ms, median {median:.0f}")
        rows.append(
            {
                "operation": name,
                **settings_of(shape),
                "milliseconds": shortest,
                "median_milliseconds": median,
                "normalisers_seconds": loading,
                **surroundings(),
            }
        )
    print(f"saved to {save(shape.out, rows)}")


def _random_hmm(shape: Shape) -> HMM:
    """An HMM with logits of standard deviation 1, and random blocks of words."""
    torch.manual_seed(0)
    block_of = torch.arange(shape.words)[torch.randperm(shape.words)] % shape.blocks
    support = Blocked.of(block_of, shape.states)
    vectors = (torch.randn(shape.states, shape.width) / shape.width**0.25 for _ in range(2))
    logits = torch.randn(shape.words, support.states_per_token)
    totals = torch.zeros(shape.blocks, support.states_per_token).index_add_(
        0, block_of, logits.exp()
    )
    emission = logits - totals.log()[block_of]
    start = torch.randn(shape.states).log_softmax(0)
    return HMM(start, Flat(*vectors), emission, support, end=0)


def _products(hmm: HMM, shape: Shape) -> None:
    leaving, entering = hmm.transitions.operands
    for _ in range(2 * len(shape.gaps)):
        leaving @ entering[: hmm.support.states_per_token].T


def _sentence(shape: Shape, seed: int) -> Tensor:
    """A sentence (1, length + 1) of random words with gaps and the end mark."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(1, shape.words, (1, shape.length + 1), generator=generator)
    text[0, list(shape.gaps)] = -1
    text[0, -1] = 0
    return text


def _check(hmm: HMM, shape: Shape) -> None:
    """Check that p(known) p(word | known) = p(whole sentence) for a sentence with one gap."""
    text = _sentence(shape, seed=0)
    text[0, list(shape.gaps[1:])] = 1
    gap = shape.gaps[0]
    answer = hmm.fill_probs(text)
    some = torch.arange(1, shape.words, shape.words // 8)
    whole = text.repeat(len(some), 1)
    whole[:, gap] = some
    expected = hmm.log_prob(whole) - answer.log_prob
    torch.testing.assert_close(answer.words[0, some], expected, rtol=0, atol=1e-3)


if __name__ == "__main__":
    main(tyro.cli(Shape))
