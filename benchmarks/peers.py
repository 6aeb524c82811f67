"""Other libraries' Baum-Welch iterations, one function each, for `em_pass.py`.

A peer takes start (Z,), transition (Z, Z), emission (Z, V), the tokens of all sequences one after
another, and their lengths, as NumPy; it does one iteration as its users would, and returns log p
of all sequences and the new start, transition and emission. A peer whose packages are not
installed has no version, and must not be called.

PyJuice is not here because it runs on a GPU only; see `gpu_peers.py`.
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
    compiles: bool = False  # at the first call, which is then not the one to time

    @property
    def version(self) -> str | None:
        """Of each package; None if one of them is not installed."""
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
    """hmmlearn as it comes."""
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
    """What `DenseHMM.fit` does in an iteration, for which `summarize` gives the log-likelihood.

    Each length of sequence is a piece, as in `fit`, and counting the words of a piece takes a loop
    over every state × word. A sequence may end after any state here, so `ends` is 1 everywhere;
    pomegranate learns the ends together with the transitions, as rows that sum to one, and without
    the ends the rows are divided by what remains.
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
    """A DenseHMM in float32 with these probabilities, where a sequence may end anywhere."""
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
    """An iteration of `CategoricalHMM.fit_em`, with the sequences one by one.

    `fit_em` takes sequences of one length, and all at once, for which its emissions would need
    memory for every token × state × word: 190 GiB at the sizes of `em_pass.py`.
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
    """The model and its compiled iteration, kept so that it compiles once.

    The priors are as flat as they may be: at a concentration of exactly 1 every row with a word
    that never occurs would become NaN, so it is the float32 after that.
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
