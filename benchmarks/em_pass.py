"""Time of one Baum-Welch iteration on the same sequences: this library and others.

    python benchmarks/em_pass.py

All start from the same dense random HMM. An iteration computes the posterior of every state at
every position, the expected counts, and the new probabilities. The time of this library is the
shortest of a few repeats. Other libraries are timed once, or in the second call if they compile in
the first. All may use every CPU of this process.

The other libraries are those of `peers.py` that are installed (`pip install -e '.[bench]'`). A
library gets a time only if its likelihood and its new probabilities agree with those of this
library; otherwise the difference is recorded.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import tyro

from bighmm import HMM
from peers import PEERS, Peer, Result
from record import best_seconds, save, settings_of, surroundings


@dataclass(frozen=True)
class Shape:
    states: int = 256
    words: int = 10_000
    tokens: int = 20_000
    length: int = 64
    """Tokens of a sequence; the last one has the rest."""
    repeats: int = 3
    out: str = "bench/em_pass.json"
    """File for the figures, under results/."""


def main(shape: Shape) -> None:
    torch.set_num_threads(_usable_cpus())
    given = _problem(shape)
    ours = _ours(*given)
    our_seconds = best_seconds(lambda: _ours(*given), shape.repeats)
    print(f"bighmm: {our_seconds:.3f} s")
    measured = {
        "operation": "one Baum-Welch iteration, dense",
        **settings_of(shape),
        "seconds": our_seconds,
        **_compare(given, ours, our_seconds),
        **surroundings(),
    }
    print(f"saved to {save(shape.out, measured)}")


def _compare(
    given: tuple[np.ndarray, ...], ours: Result, our_seconds: float
) -> dict[str, dict[str, Any]]:
    """The figures of every installed library, and the reason why another has none."""
    found: dict[str, dict[str, Any]] = {
        key: {} for key in ("peer_seconds", "ratio", "peer_versions", "wrong")
    }
    for name, peer in PEERS.items():
        version = peer.version
        if version is None:
            print(f"{name}: not installed")
            continue
        found["peer_versions"][name] = version
        seconds, theirs = _run(peer, given)
        if difference := _difference(ours, theirs):
            print(f"{name}: no figure, {difference}")
            found["wrong"][name] = difference
            continue
        found["peer_seconds"][name] = seconds
        found["ratio"][name] = seconds / our_seconds
        print(f"{name}: {seconds:.2f} s, {seconds / our_seconds:.0f} times as long")
    return found


def _usable_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _problem(shape: Shape) -> tuple[np.ndarray, ...]:
    """start, transition, emission, the tokens of all sequences, and the sequences' lengths."""
    rng = np.random.default_rng(0)
    start = rng.dirichlet(np.ones(shape.states))
    transition = rng.dirichlet(np.ones(shape.states), size=shape.states)
    emission = rng.dirichlet(np.ones(shape.words), size=shape.states)
    ids = rng.integers(0, shape.words, size=shape.tokens)
    lengths = np.full(-(-shape.tokens // shape.length), shape.length)
    lengths[-1] = shape.tokens - shape.length * (len(lengths) - 1)
    return start, transition, emission, ids, lengths


def _ours(
    start: np.ndarray,
    transition: np.ndarray,
    emission: np.ndarray,
    ids: np.ndarray,
    lengths: np.ndarray,
) -> Result:
    """log p of all sequences, and start, transition and emission after one iteration."""
    given = (torch.from_numpy(t).float() for t in (start, transition, emission))
    hmm = HMM.from_probs(*given)
    rows = np.zeros((len(lengths), lengths.max()), dtype=np.int64)
    rows[np.arange(lengths.max()) < lengths[:, None]] = ids
    tokens, row_lengths = torch.from_numpy(rows), torch.from_numpy(lengths)
    counts = hmm.expected_counts(tokens, row_lengths)
    return (
        counts.log_prob.double().sum().numpy(),
        (counts.start / counts.start.sum()).numpy(),
        (counts.transition / counts.transition.sum(1, keepdim=True)).numpy(),
        (counts.emission / counts.emission.sum(0)).T.numpy(),
    )


def _run(peer: Peer, given: tuple[np.ndarray, ...]) -> tuple[float, Result]:
    """The seconds of one iteration, without compilation, and its result."""
    peer.iterate(*(given if peer.compiles else _problem(Shape(states=2, words=3, tokens=8))))
    found: list[Result] = []
    seconds = best_seconds(lambda: found.append(peer.iterate(*given)), 1)
    return seconds, found[0]


def _difference(ours: Result, theirs: Result) -> str | None:
    """The first part of two results that differs, and by how much; None if they agree."""
    for what, a, b in zip(("log p", "start", "transition", "emission"), ours, theirs, strict=True):
        if a.shape != b.shape or not np.allclose(a, b, rtol=1e-3, atol=1e-5):
            worst = np.abs(a - b).max() if a.shape == b.shape else np.inf
            return f"{what} differs by up to {worst:.2g}"
    return None


if __name__ == "__main__":
    main(tyro.cli(Shape))
