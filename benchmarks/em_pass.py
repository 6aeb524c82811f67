"""One pass of Baum-Welch over the same sequences: this library against hmmlearn.

    python benchmarks/em_pass.py

Both start from the same dense random HMM and do one iteration: the posterior of every state at
every position, the expected counts that are sums of them, and the new probabilities. The times are
of one run on one machine, the fastest of a few repeats for this library. hmmlearn has two
implementations, "log" (its default) and "scaling"; both are timed. No figure is given unless the
likelihoods and the new probabilities of the two libraries agree.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import torch
import tyro
from hmmlearn.hmm import CategoricalHMM

from bighmm import HMM
from record import best_seconds, save, surroundings


@dataclass(frozen=True)
class Shape:
    states: int = 256
    words: int = 10_000
    tokens: int = 20_000
    length: int = 64
    """Of every sequence; the last one is what is left."""
    repeats: int = 3
    out: str = "bench/em_pass.json"
    """Where under results/ to save the figures."""


def main(shape: Shape) -> None:
    rng = np.random.default_rng(0)
    start = rng.dirichlet(np.ones(shape.states))
    transition = rng.dirichlet(np.ones(shape.states), size=shape.states)
    emission = rng.dirichlet(np.ones(shape.words), size=shape.states)
    ids = rng.integers(0, shape.words, size=shape.tokens)
    lengths = np.full(-(-shape.tokens // shape.length), shape.length)
    lengths[-1] = shape.tokens - shape.length * (len(lengths) - 1)

    ours = _ours(start, transition, emission, ids, lengths)
    our_seconds = best_seconds(
        lambda: _ours(start, transition, emission, ids, lengths), shape.repeats
    )
    print(f"bighmm: {our_seconds:.3f} s")
    peers = {}
    for implementation in ("log", "scaling"):
        found: list[tuple[np.ndarray, ...]] = []

        def one_iteration(implementation: str = implementation, found: list = found) -> None:
            found.append(_hmmlearn(start, transition, emission, ids, lengths, implementation))

        peers[implementation] = best_seconds(one_iteration, 1)
        _require_same(ours, found[0], implementation)
        print(f"hmmlearn, {implementation}: {peers[implementation]:.1f} s")
    ratios = {name: seconds / our_seconds for name, seconds in peers.items()}
    for name, ratio in ratios.items():
        print(f"{ratio:.0f} times faster than hmmlearn, {name}")
    result = {
        "operation": "one Baum-Welch iteration, dense",
        **asdict(shape),
        "seconds": our_seconds,
        "peer": "hmmlearn.CategoricalHMM",
        "peer_seconds": peers,
        "ratio": ratios,
        **surroundings(),
    }
    print(f"saved to {save(shape.out, result)}")


def _ours(
    start: np.ndarray,
    transition: np.ndarray,
    emission: np.ndarray,
    ids: np.ndarray,
    lengths: np.ndarray,
) -> tuple[np.ndarray, ...]:
    """log p of all rows, and start, transition and emission after one iteration."""
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


def _hmmlearn(
    start: np.ndarray,
    transition: np.ndarray,
    emission: np.ndarray,
    ids: np.ndarray,
    lengths: np.ndarray,
    implementation: str,
) -> tuple[np.ndarray, ...]:
    model = CategoricalHMM(
        n_components=len(start),
        n_features=emission.shape[1],
        n_iter=1,
        init_params="",
        implementation=implementation,
    )
    model.startprob_, model.transmat_, model.emissionprob_ = start, transition, emission
    model.fit(ids[:, None], lengths)
    log_prob = np.array(model.monitor_.history[0])
    return log_prob, model.startprob_, model.transmat_, model.emissionprob_


def _require_same(ours: tuple[np.ndarray, ...], theirs: tuple[np.ndarray, ...], name: str) -> None:
    for what, a, b in zip(("log p", "start", "transition", "emission"), ours, theirs, strict=True):
        if not np.allclose(a, b, rtol=1e-3, atol=1e-5):
            worst = float(np.abs(a - b).max())
            raise SystemExit(
                f"no figures: {what} differs from hmmlearn's ({name}) by up to {worst:.2g}"
            )


if __name__ == "__main__":
    main(tyro.cli(Shape))
