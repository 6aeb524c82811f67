"""Small random models of every kind, for tests."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bighmm.hmm import HMM
from bighmm.model.support import Blocked, Dense, PerToken, Support
from bighmm.model.transitions import Flat, Table, Transitions, TwoLevel
from bighmm.ops import memory

KINDS = (
    *("dense-table", "dense-flat", "blocked-table", "blocked-flat", "blocked-two_level"),
    "per_token-flat",
)


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
    elif kind.endswith("two_level"):
        blocks = 1 if support.partition is None else support.partition.num_blocks
        width = 4
        vectors = (normal(n, width) / (scale * width) ** 0.5 for n in (*[states] * 3, blocks))
        transitions = TwoLevel(*vectors, normal(blocks))
    else:
        width = 4
        transitions = Flat(normal(states, width) / width**0.5, normal(states, width) / scale)
    emission = normalised_emission(support, normal(vocabulary, support.states_per_token))
    start = normal(states).log_softmax(0)
    return HMM(start, transitions, emission, support, end, reset).to("cpu", dtype)


def random_support(kind: str, states: int, vocabulary: int, seed: int = 0) -> Support:
    if kind == "dense":
        return Dense(states, vocabulary)
    if kind == "blocked":
        blocks = next(m for m in (3, 2, 1) if states % m == 0 and m <= vocabulary)
        return Blocked.of(torch.arange(vocabulary) % blocks, states)
    alive = min(states, max(2, states // 2, -(-states // vocabulary)))
    return PerToken.random(vocabulary, states, alive, seed)


def normalised_emission(support: Support, logits: Tensor) -> Tensor:
    """log p(x | z) (V, K), normalised over the tokens that each state may emit."""
    states = support.states(torch.arange(support.vocabulary_size))
    present = states >= 0
    every = torch.full((support.vocabulary_size, support.num_states), -torch.inf).to(logits)
    tokens = torch.arange(len(states)).unsqueeze(1).expand_as(states)
    every[tokens[present], states[present]] = logits[present]
    total = every.logsumexp(0)
    return torch.where(present, logits - total[states.clamp(min=0)], -torch.inf)


def leaves(hmm: HMM) -> list[Tensor]:
    """Copies of start, emission and the transitions' operands that ask for a gradient."""
    tensors = (hmm.start, hmm.emission, *hmm.transitions.operands)
    return [t.detach().clone().requires_grad_() for t in tensors]


def rebuilt(hmm: HMM, start: Tensor, emission: Tensor, *operands: Tensor) -> HMM:
    """The same HMM from other tensors, in the order of `leaves`."""
    transitions = hmm.transitions.with_operands(*operands)
    return HMM(start, transitions, emission, hmm.support, hmm.end, hmm.reset)


def gradients(hmm: HMM, tokens: Tensor, lengths: Tensor | None = None, **options) -> list[Tensor]:
    """Of the sum of log_prob, in the order of `leaves`."""
    parameters = leaves(hmm)
    total = rebuilt(hmm, *parameters).log_prob(tokens, lengths, **options).sum()
    return list(torch.autograd.grad(total, parameters))


def dense_twin(hmm: HMM) -> HMM:
    """The same distribution with every state alive, and log p(x | z) = -inf where z never emits x.

    Differentiable in the parameters of `hmm`.
    """
    every = torch.arange(hmm.num_states)
    emission = hmm.support.emission_rows(hmm.emission, every).T
    support = Dense(hmm.num_states, hmm.vocabulary_size)
    table = Table(hmm.transitions.log_probs())
    return HMM(hmm.start, table, emission, support, hmm.end, hmm.reset)


def cut_work(monkeypatch: pytest.MonkeyPatch, elements: int) -> None:
    """Let no piece of work be larger than `elements`, so that tiny models are cut into pieces."""
    for name in ("WORKING", "STREAMED", "TILE"):
        monkeypatch.setattr(memory, name, elements)
    monkeypatch.setattr(memory, "CACHED", 0)


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
