"""What else could be used on a GPU, as operations for `gpu.py`, each if its package is installed.

All have the sizes of `dense_step`: 32,000 words, batch 256 × 64. What they find is compared with
this library's plain torch in float64, from the same random probabilities.

dynamax is compared on the CPU only, in `em_pass.py`.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch

import peers
from bighmm.hmm import HMM
from operations import DEVICE, Measured, operation

WORDS, BATCH, TIME = 32_000, 256, 64
STEP_SIZE = 0.1  # of PyJuice's mini-batch EM, as in its documentation; no pseudocount

Tables = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def random_problem(states: int) -> tuple[Tables, torch.Tensor]:
    """start, transition and emission probabilities on the CPU, and token ids on the device.

    The rows are uneven enough that an iteration moves all three by 10% or more.
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
    """The mixture of old and newly estimated probabilities, as mini-batch EM takes it."""
    counts = hmm.expected_counts(ids)
    learned = counts.start, counts.transition, counts.emission.T
    mixed = (
        (1 - size) * old + size * new / new.sum(-1, keepdim=True)
        for old, new in zip(hmm.tables(), learned, strict=True)
    )
    return HMM.from_probs(*mixed)


def sweeps_flop(states: int) -> float:
    """A product per token forward, backward, and for the counts of transitions."""
    return 6.0 * BATCH * TIME * states**2


def off(found: torch.Tensor, right: torch.Tensor, old: torch.Tensor | None = None) -> float:
    """How far `found` is from `right`, relative to its size, or to its distance from `old`."""
    size = right if old is None else right - old
    return float((found.to(right) - right).norm() / size.norm())


def pomegranate_counts(states: int) -> Measured:
    """pomegranate's expected counts of starts, transitions and states.

    The rest of its iteration, the counts of words, is a Python loop over every state × word with a
    few kernel launches each, and 512 × 32,000 rounds of it are too long to time here. So the time
    is less than that of an iteration.
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
    """PyJuice's mini-batch EM on its HMM: forward, backward, and the step; its graphs recorded."""
    import pyjuice

    tables, ids = random_problem(states)
    start, transition, emission = (t.clone() for t in tables)  # it divides by the sums in place
    circuit = pyjuice.structures.HMM(
        TIME, states, WORDS, alpha=transition, beta=emission, gamma=start
    )
    model = pyjuice.compile(circuit, verbose=False).to(DEVICE)
    model(ids, record_cudagraph=True).mean().backward()
    optimizer = pyjuice.optim.MiniBatchEM(model, step_size=STEP_SIZE)  # forgets what was recorded

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
        """Of likelihoods and probabilities after a step, relative to what the step changes."""
        run()
        with torch.no_grad():
            log_prob = model(ids).flatten()  # all rows: another batch size would lose the graphs
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
