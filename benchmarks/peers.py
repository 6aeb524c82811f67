"""One Baum-Welch iteration by other libraries, one function each, for `em_pass.py`.

A peer takes NumPy arrays: start (Z,), transition (Z, Z), emission (Z, V), the concatenated tokens
of all sequences, and their lengths. It does one iteration in the usual way of its library, and
returns log p of all sequences and the new start, transition and emission. A peer whose packages are
not installed has the version None and cannot be called.

PyJuice is in `gpu_peers.py`, because it runs only on a GPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np
import torch

Result = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
Iteration = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray], Result]


@dataclass(frozen=True)
class Peer:
    iterate: Iteration
    packages: tuple[str, ...]
    compiles: bool = False  # whether it compiles in the first call, which is not timed then

    @property
    def version(self) -> str | None:
        """The version of each package; None if one of them is not installed."""
        try:
            return ", ".join(f"{name} {metadata.version(name)}" for name in self.packages)
        except metadata.PackageNotFoundError:
            return None


PEERS: dict[str, Peer] = {}


def peer(name: str, *packages: str, compiles: bool = False) -> Callable[[Iteration], Iteration]:
    def add(iterate: Iteration) -> Iteration:
        PEERS[name] = Peer(iterate, packages, compiles)
        return iterate

    return add


@peer("hmmlearn, log", "hmmlearn")
def hmmlearn_log(*given: np.ndarray) -> Result:
    """hmmlearn with its default settings."""
    return _hmmlearn(*given, implementation="log")


@peer("hmmlearn, scaling", "hmmlearn")
def hmmlearn_scaling(*given: np.ndarray) -> Result:
    return _hmmlearn(*given, implementation="scaling")


def _hmmlearn(
    start: np.ndarray,
    transition: np.ndarray,
    emission: np.ndarray,
    ids: np.ndarray,
    lengths: np.ndarray,
    implementation: str,
) -> Result:
    from hmmlearn.hmm import CategoricalHMM

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


@peer("pomegranate", "pomegranate")
def pomegranate(
    start: np.ndarray,
    transition: np.ndarray,
    emission: np.ndarray,
    ids: np.ndarray,
    lengths: np.ndarray,
) -> Result:
    """An iteration of `DenseHMM.fit`, with the log-likelihood of `summarize`.

    As in `fit`, sequences of equal length are one batch, and counting the words of a batch loops
    over all pairs of states and words. A sequence may end after any state, so `ends` is 1
    everywhere. pomegranate normalises the probabilities of ends and transitions of a state
    together; here the transitions are normalised without the ends.
    """
    model = pomegranate_model(*(torch.from_numpy(t) for t in (start, transition, emission)))
    pieces = [torch.from_numpy(rows)[:, :, None] for rows in _by_length(ids, lengths)]
    log_prob = sum(model.summarize(rows).double().sum() for rows in pieces)
    model.from_summaries()
    moves = model.edges.exp()
    return (
        np.array(log_prob),
        model.starts.exp().numpy(),
        (moves / moves.sum(1, keepdim=True)).numpy(),
        torch.cat([state.probs for state in model.distributions]).numpy(),
    )


def pomegranate_model(
    start: torch.Tensor, transition: torch.Tensor, emission: torch.Tensor
) -> torch.nn.Module:
    """A DenseHMM in float32 with these probabilities; a sequence may end after any state."""
    from pomegranate.distributions import Categorical
    from pomegranate.hmm import DenseHMM

    states = [Categorical(probs[None], check_data=False) for probs in emission.float()]
    ends = torch.ones(len(start))
    return DenseHMM(states, transition.float(), start.float(), ends, check_data=False)


@peer("dynamax", "dynamax", "jax", compiles=True)
def dynamax(
    start: np.ndarray,
    transition: np.ndarray,
    emission: np.ndarray,
    ids: np.ndarray,
    lengths: np.ndarray,
) -> Result:
    """An iteration of `CategoricalHMM.fit_em`, sequence by sequence.

    `fit_em` itself takes all sequences at once, which must have equal lengths. Its emissions would
    then need memory for tokens × states × words: 190 GiB at the sizes of `em_pass.py`.
    """
    import jax.numpy as jnp

    model, iterate = _dynamax_iteration(*emission.shape)
    params, _ = model.initialize(
        initial_probs=jnp.asarray(start, jnp.float32),
        transition_matrix=jnp.asarray(transition, jnp.float32),
        emission_probs=jnp.asarray(emission[:, None], jnp.float32),
    )
    pieces = [jnp.asarray(rows[:, :, None]) for rows in _by_length(ids, lengths)]
    log_prob, new = iterate(params, pieces)
    return (
        np.asarray(log_prob),
        np.asarray(new.initial.probs),
        np.asarray(new.transitions.transition_matrix),
        np.asarray(new.emissions.probs[:, 0]),
    )


@functools.cache
def _dynamax_iteration(states: int, words: int) -> tuple[Any, Callable[..., Any]]:
    """The model and its compiled iteration, cached so that it is compiled once.

    The priors have the smallest float32 concentration above 1: with exactly 1, every row with a
    word that never occurs would become NaN.
    """
    import jax
    import jax.numpy as jnp
    from dynamax.hidden_markov_model import CategoricalHMM

    flat = float(np.nextafter(np.float32(1), np.float32(2)))
    model = CategoricalHMM(
        states,
        emission_dim=1,
        num_classes=words,
        initial_probs_concentration=flat,
        transition_matrix_concentration=flat,
        emission_prior_concentration=flat,
    )
    _, props = model.initialize()

    def expected(params: Any, rows: Any) -> Any:
        def add(total: Any, row: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, model.e_step(params, row)), None

        zero = jax.tree.map(jnp.zeros_like, jax.eval_shape(model.e_step, params, rows[0]))
        return jax.lax.scan(add, zero, rows)[0]

    @jax.jit
    def iterate(params: Any, pieces: list[Any]) -> tuple[Any, Any]:
        found = [expected(params, rows) for rows in pieces]
        stats, log_probs = jax.tree.map(lambda *of_pieces: jnp.stack(of_pieces), *found)
        new, _ = model.m_step(params, props, stats, model.initialize_m_step_state(params, props))
        return log_probs.sum(), new

    return model, iterate


def _by_length(ids: np.ndarray, lengths: np.ndarray) -> Iterator[np.ndarray]:
    """The sequences as arrays (B, T), one for each length."""
    sequences = np.split(ids, np.cumsum(lengths)[:-1])
    for length in np.unique(lengths):
        yield np.stack([sequence for sequence in sequences if len(sequence) == length])
