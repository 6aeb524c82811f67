"""What else could be used on a GPU, as operations for `gpu.py`, each if its package is installed.

All have the sizes of `dense_step`: 32,000 words, batch 256 × 64. What they find is compared with
this library's plain torch in float64, from the same random probabilities.

dynamax is not here: on these sizes its emissions need memory for every token × state × word.
"""

from __future__ import annotations

from importlib.util import find_spec

import torch

import peers
from bighmm.hmm import HMM
from operations import DEVICE, Measured, operation

WORDS, BATCH, TIME = 32_000, 256, 64
STEP_SIZE = 0.1  # of PyJuice's mini-batch EM, as its documentation has it

Tables = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def random_problem(states: int) -> tuple[Tables, torch.Tensor]:
    """start, transition and emission probabilities on the CPU, and token ids on the device."""
    generator = torch.Generator().manual_seed(1)

    def rows(*shape: int) -> torch.Tensor:
        weights = torch.empty(shape).exponential_(generator=generator)
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


def off(found: torch.Tensor, right: torch.Tensor) -> float:
    return float(((found - right) / right).abs().max())


def pomegranate_counts(states: int) -> Measured:
    """pomegranate's expected counts of starts, transitions and states: less than an EM iteration.

    The rest of its iteration, the counts of words, is a Python loop over every state × word with a
    few kernel launches each, some ten minutes at these sizes, so it is left out of the time.
    """
    tables, ids = random_problem(states)
    model = peers.pomegranate_model(*tables).to(DEVICE)

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        moves, _, _, _, log_prob = model.forward_backward(ids.unsqueeze(2))
        return log_prob, moves.sum(0)

    def error() -> float:
        log_prob, moves = run()
        right = exact(tables).expected_counts(ids)
        apart = (moves - right.transition).norm() / right.transition.norm()
        return max(off(log_prob, right.log_prob), float(apart))

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

    def log_prob() -> torch.Tensor:
        with torch.no_grad():
            return model(ids).flatten()  # all rows: another batch size would lose the graphs

    def error() -> float:
        """Of the likelihoods before a step and after it, which say if the step was right."""
        before = log_prob()
        run()
        after = log_prob()
        hmm = exact(tables)
        stepped = after_step(hmm, ids, STEP_SIZE)
        return max(off(before, hmm.log_prob(ids)), off(after, stepped.log_prob(ids)))

    return Measured(run, sweeps_flop(states), error, 1e-3)


if find_spec("pomegranate"):
    operation("pomegranate_counts", (512,), peer="pomegranate, DenseHMM")(pomegranate_counts)
if find_spec("pyjuice"):
    operation("pyjuice_step", (512, 1024), peer="PyJuice, HMM")(pyjuice_step)
