"""Other libraries on a GPU as operations for `gpu.py`, if their packages are installed.

All have the sizes of `dense_step`: 32,000 words, batch 256 × 64. Results are compared with plain
torch of this library in float64, from the same random probabilities.

dynamax is compared only on the CPU, in `em_pass.py`.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch

import peers
from bighmm.hmm import HMM
from operations import DEVICE, Measured, operation

WORDS, BATCH, TIME = 32_000, 256, 64
STEP_SIZE = 0.1  # of mini-batch EM, as in the documentation of PyJuice; no pseudocount

Tables = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def random_problem(states: int) -> tuple[Tables, torch.Tensor]:
    """start, transition and emission probabilities on the CPU, and token ids on the device.

    The rows are so uneven that an iteration changes all three by 10% or more.
    """
    generator = torch.Generator().manual_seed(1)

    def rows(*shape: int) -> torch.Tensor:
        weights = torch.empty(shape).exponential_(generator=generator) ** 3
        return weights / weights.sum(-1, keepdim=True)

    tables = rows(states), rows(states, states), rows(states, WORDS)
    return tables, torch.randint(WORDS, (BATCH, TIME), generator=generator).to(DEVICE)


def exact(tables: Tables) -> HMM:
    return HMM.from_probs(*(t.to(DEVICE, torch.float64) for t in tables))


def after_step(hmm: HMM, ids: torch.Tensor, size: float) -> HMM:
    """The HMM after a step of mini-batch EM: a mixture of old and newly estimated probabilities."""
    counts = hmm.expected_counts(ids)
    learned = counts.start, counts.transition, counts.emission.T
    mixed = (
        (1 - size) * old + size * new / new.sum(-1, keepdim=True)
        for old, new in zip(hmm.tables(), learned, strict=True)
    )
    return HMM.from_probs(*mixed)


def sweeps_flop(states: int) -> float:
    """FLOP of three products per token: forward, backward, and the counts of transitions."""
    return 6.0 * BATCH * TIME * states**2


def off(found: torch.Tensor, right: torch.Tensor, old: torch.Tensor | None = None) -> float:
    """The distance of `found` from `right`, relative to the norm of `right`, or of right - old."""
    size = right if old is None else right - old
    return float((found.to(right) - right).norm() / size.norm())


def pomegranate_counts(states: int) -> Measured:
    """Expected counts of starts, transitions and states by pomegranate.

    The rest of its iteration, the counts of words, is not timed: it is a Python loop over all pairs
    of states and words, with a few kernel launches each, and would take too long for 512 × 32,000
    pairs. So the time is lower than that of an iteration.
    """
    tables, ids = random_problem(states)
    model = peers.pomegranate_model(*tables).to(DEVICE)

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        moves, _, _, _, log_prob = model.forward_backward(ids.unsqueeze(2))
        return log_prob, moves.sum(0)

    def error() -> float:
        log_prob, moves = run()
        right = exact(tables).expected_counts(ids)
        return max(off(log_prob, right.log_prob), off(moves, right.transition))

    return Measured(run, sweeps_flop(states), error, 1e-3)


def pyjuice_step(states: int) -> Measured:
    """A step of mini-batch EM by PyJuice on its HMM, replayed as CUDA graphs."""
    import pyjuice

    tables, ids = random_problem(states)
    start, transition, emission = (t.clone() for t in tables)  # PyJuice normalises them in place
    circuit = pyjuice.structures.HMM(
        TIME, states, WORDS, alpha=transition, beta=emission, gamma=start
    )
    model = pyjuice.compile(circuit, verbose=False).to(DEVICE)
    model(ids, record_cudagraph=True).mean().backward()
    optimizer = pyjuice.optim.MiniBatchEM(model, step_size=STEP_SIZE)  # resets recorded counts

    def run() -> None:
        model(ids).mean().backward()
        optimizer.step()

    def learned() -> Tables:
        model.update_parameters()  # copies them into the circuit
        words, next_states = (nodes.get_source_ns() for nodes in circuit.chs[0].chs)
        return (
            circuit.get_params(as_matrix=True).squeeze(0),
            next_states.get_params(as_matrix=True),
            words.get_params().view(states, WORDS),
        )

    def error() -> float:
        """The error of likelihoods and new probabilities, relative to the changes of the step."""
        run()
        with torch.no_grad():
            log_prob = model(ids).flatten()  # all rows: the graphs are for this batch size
        old = exact(tables)
        new = after_step(old, ids, STEP_SIZE)
        parts = zip(learned(), new.tables(), old.tables(), strict=True)
        return max(
            off(log_prob, new.log_prob(ids), old.log_prob(ids)),
            *(off(found, right, before) for found, right, before in parts),
        )

    return Measured(run, sweeps_flop(states), error, 5e-2)


if find_spec("pomegranate"):
    operation("pomegranate_counts", (512,), peer="pomegranate, DenseHMM")(pomegranate_counts)
if find_spec("pyjuice"):
    operation("pyjuice_step", (512, 1024), peer="PyJuice, HMM")(pyjuice_step)
