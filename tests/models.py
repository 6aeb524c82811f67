"""Small random models of every kind, for tests."""

from __future__ import annotations

import torch
from torch import Tensor

from bighmm.hmm import HMM
from bighmm.support import Blocked, Dense, Free, Support
from bighmm.transitions import Factored, Table, Transitions

KINDS = ("dense-table", "dense-factored", "blocked-table", "blocked-factored", "free-factored")


def random_hmm(
    kind: str,
    states: int = 6,
    vocabulary: int = 5,
    *,
    seed: int = 0,
    end: int | None = 0,
    reset: bool = True,
    dtype: torch.dtype = torch.float64,
    scale: float = 1.0,
) -> HMM:
    """An HMM with random parameters; `scale` is the standard deviation of its logits."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * scale

    support = random_support(kind.split("-")[0], states, vocabulary, seed)
    transitions: Transitions
    if kind.endswith("table"):
        transitions = Table(normal(states, states))
    else:
        width = 4
        transitions = Factored(normal(states, width) / width**0.5, normal(states, width) / scale)
    emission = normalised_emission(support, normal(vocabulary, support.alive))
    start = normal(states).log_softmax(0)
    return HMM(start, transitions, emission, support, end, reset).to("cpu", dtype)


def random_support(kind: str, states: int, vocabulary: int, seed: int = 0) -> Support:
    if kind == "dense":
        return Dense(states, vocabulary)
    if kind == "blocked":
        blocks = next(m for m in (3, 2, 1) if states % m == 0 and m <= vocabulary)
        return Blocked.of(torch.arange(vocabulary) % blocks, states)
    return Free.random(vocabulary, states, alive=max(2, states // 2), seed=seed)


def normalised_emission(support: Support, logits: Tensor) -> Tensor:
    """log p(x | z) (V, K), normalised over the tokens each state may emit, by the plain definition."""
    states = support.states(torch.arange(support.vocabulary_size))
    total = torch.zeros(support.num_states, dtype=logits.dtype)
    present = states >= 0
    total.index_add_(0, states[present], logits.exp()[present])
    return torch.where(present, logits - total.log()[states.clamp(min=0)], -torch.inf)


def ragged(
    vocabulary: int, lengths: list[int], seed: int = 0, padding: int = -1
) -> tuple[Tensor, Tensor]:
    """Random token ids (B, T) with `padding` beyond each length."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(
        0, vocabulary, (len(lengths), max(lengths, default=0)), generator=generator
    )
    size = torch.tensor(lengths)
    outside = torch.arange(tokens.shape[1]) >= size.unsqueeze(1)
    return tokens.masked_fill(outside, padding), size
