"""How a `SequenceHMM` is fitted: by Baum-Welch on tables, or by AdamW on any parameters.

Both are updates of `bighmm.train`, run step by step.
"""

from __future__ import annotations

import dataclasses
import math
from numbers import Integral, Real
from typing import Any, Literal, Protocol

import numpy as np
import torch

from bighmm.data import brown
from bighmm.data.batches import Batch
from bighmm.hmm import HMM
from bighmm.model import params
from bighmm.model.emissions import EmissionTable
from bighmm.model.options import ScalarOptions
from bighmm.model.params import Parameterisation
from bighmm.model.support import Support, SupportRequest, find_support
from bighmm.sequences.rows import Rows
from bighmm.train.expectation_maximisation import ExpectationMaximisation
from bighmm.train.losses import Likelihood
from bighmm.train.recipe import TrainingSettings
from bighmm.train.runner import EagerRunner
from bighmm.train.schedule import make_schedule
from bighmm.train.update import Descent

LARGEST_GRADIENT = 5.0
COUNTS = (
    *("n_states", "n_symbols", "n_blocks", "n_states_per_symbol"),
    *("iterations", "batch_size", "n_init"),
)
NUMBERS = ("tolerance", "smoothing", "lr")


class Settings(Protocol):
    """The settings of a `SequenceHMM` that fitting needs; see there for what they mean."""

    n_states: int
    support: Literal["dense", "blocked", "per-symbol"]
    n_blocks: int
    n_states_per_symbol: int
    parameterisation: str
    options: dict[str, Any] | None
    optimizer: Literal["baum-welch", "adamw"]
    iterations: int
    tolerance: float
    smoothing: float
    lr: float
    batch_size: int
    initial: HMM | None


def check_settings(settings: Settings) -> None:
    """Raises ValueError for the first setting that is not of its kind."""
    for name in COUNTS:
        value = getattr(settings, name)
        if name == "n_symbols" and value is None:
            continue
        if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")
    for name in NUMBERS:
        value = getattr(settings, name)
        if not isinstance(value, Real) or math.isnan(value):
            raise ValueError(f"{name} must be a number, not {value!r}")
    if settings.initial is not None and not isinstance(settings.initial, HMM):
        raise ValueError(f"initial must be an HMM or None, not {type(settings.initial).__name__}")


def fit(settings: Settings, rows: Rows, symbols: int, seed: int) -> tuple[HMM, list[float]]:
    """The fitted HMM in float64, and the log-probability of all rows before each iteration and
    after the last.

    Raises ValueError for settings that do not go together, and for rows of probability zero.
    """
    if settings.optimizer == "baum-welch":
        return _baum_welch(settings, rows, symbols, seed)
    if settings.optimizer == "adamw":
        return _adamw(settings, rows, symbols, seed)
    raise ValueError(f"there is no optimizer {settings.optimizer!r}; use 'baum-welch' or 'adamw'")


def _baum_welch(settings: Settings, rows: Rows, symbols: int, seed: int) -> tuple[HMM, list[float]]:
    """Iterations over all sequences."""
    if not 0 <= settings.smoothing < math.inf:
        raise ValueError(f"smoothing must be finite and not below 0, not {settings.smoothing}")
    module = _first_tables(settings, rows, symbols, seed)
    training = TrainingSettings(
        optimizer="baum-welch", smoothing=float(settings.smoothing), schedule="constant"
    )
    update = ExpectationMaximisation(module, training, make_schedule(training, 1))
    runner = EagerRunner(update, ByLength(rows), seed, full_batch=True)
    history: list[float] = []
    while True:
        result = runner.measure(len(history))
        history.append(-result.loss * result.tokens)
        if not math.isfinite(history[-1]):
            _refuse_impossible(finished(module), rows)
        if len(history) > settings.iterations or _settled(history, rows, settings.tolerance):
            return finished(module), history
        runner.apply(result)


def _adamw(settings: Settings, rows: Rows, symbols: int, seed: int) -> tuple[HMM, list[float]]:
    """Passes over all sequences in batches that are drawn anew.

    While the parameters change the history has the sum over a pass of what each batch had.
    """
    if not 0 < settings.lr < math.inf:
        raise ValueError(f"lr must be finite and above 0, not {settings.lr}")
    if settings.initial is not None:
        raise ValueError("an initial HMM is for optimizer='baum-welch'; leave it out for 'adamw'")
    module = new_parameters(settings, rows, symbols, seed)
    training = TrainingSettings(
        lr=float(settings.lr), clip=LARGEST_GRADIENT, state_dropout=0.0, schedule="constant"
    )
    update = Descent(module, Likelihood(module), training, make_schedule(training, 1))
    batches = Shuffled(rows, settings.batch_size, seed)
    runner = EagerRunner(update, batches, seed)
    history: list[float] = []
    for iteration in range(settings.iterations):
        first = iteration * batches.steps_per_epoch
        results = runner.run(first, batches.steps_per_epoch)
        if not all(result.finite for result in results):
            raise ValueError(
                f"the likelihood is no longer a finite number; use a smaller lr than {settings.lr}"
            )
        history.append(-sum(result.loss * result.tokens for result in results))
        if _settled(history, rows, settings.tolerance):
            break
    hmm = finished(module)
    after = sum(float(hmm.log_prob(ids, lengths).sum()) for _, ids, lengths in rows.batches())
    if not math.isfinite(after):
        raise ValueError(f"the likelihood is no longer finite; use a smaller lr than {settings.lr}")
    return hmm, [*history, after]


class ByLength:
    """Batches of all sequences, those of similar length together; the same in every epoch."""

    shape = None

    def __init__(self, rows: Rows) -> None:
        self.rows = [(ids, lengths) for _, ids, lengths in rows.batches() if bool(lengths.any())]
        self.steps_per_epoch = len(self.rows)
        self.tokens_per_step = rows.symbols / max(1, self.steps_per_epoch)

    def batch(self, step: int) -> Batch:
        ids, lengths = self.rows[step % self.steps_per_epoch]
        return Batch(ids.numpy(), lengths.numpy(), continues=False)


class Shuffled:
    """Batches of sequences that are not empty, drawn anew in every epoch."""

    shape = None

    def __init__(self, rows: Rows, size: int, seed: int) -> None:
        self.rows, self.size = rows, size
        self.filled = np.array([number for number, row in enumerate(rows.rows) if len(row)])
        self.steps_per_epoch = -(-len(self.filled) // size)
        self.tokens_per_step = rows.symbols / self.steps_per_epoch
        self._generator = np.random.default_rng(seed)
        self._orders: list[np.ndarray] = []  # of the epochs so far

    def batch(self, step: int) -> Batch:
        epoch, place = divmod(step, self.steps_per_epoch)
        while len(self._orders) <= epoch:
            self._orders.append(self._generator.permutation(self.filled))
        chosen = self._orders[epoch][place * self.size : (place + 1) * self.size]
        ids, lengths = self.rows.padded(chosen.tolist())
        return Batch(ids.numpy(), lengths.numpy(), continues=False)


def new_parameters(settings: Settings, rows: Rows, symbols: int, seed: int) -> Parameterisation:
    """Random parameters of the parameterisation and the support that were asked for."""
    options = params.find(settings.parameterisation).options
    support = new_support(settings, rows, symbols, seed)
    try:
        chosen = options(**(settings.options or {}))
        return params.build(settings.parameterisation, chosen, support, None, seed)
    except TypeError:
        known = ", ".join(field.name for field in dataclasses.fields(options))
        raise ValueError(
            f"options {settings.options!r} do not fit the parameterisation "
            f"{settings.parameterisation!r}, which has {known}"
        ) from None


def new_support(settings: Settings, rows: Rows, symbols: int, seed: int) -> Support:
    """A support of the kind that was asked for; blocks are Brown clusters of the sequences."""

    def classes() -> np.ndarray:
        return brown.cluster(np.concatenate(rows.rows), symbols, settings.n_blocks).classes

    kind = "per-token" if settings.support == "per-symbol" else settings.support
    request = SupportRequest(
        settings.n_states, symbols, settings.n_states_per_symbol, seed, classes
    )
    return find_support(kind).make(request)


@torch.no_grad()
def finished(module: Parameterisation) -> HMM:
    """The HMM of trained parameters, apart from them, in float64."""
    made = module.double()()  # before anything is normalised
    transitions, emissions = made.transitions.detach(), EmissionTable(made.emission)
    made = dataclasses.replace(made, transitions=transitions, emissions=emissions)
    return HMM.of(made).to("cpu", torch.float64)


def _first_tables(settings: Settings, rows: Rows, symbols: int, seed: int) -> Parameterisation:
    """Tables in float64: those of the HMM that was given, or random ones."""
    if settings.parameterisation != "scalar":
        raise ValueError(
            f"Baum-Welch makes tables of probabilities, so it needs parameterisation='scalar', not "
            f"{settings.parameterisation!r}; use optimizer='adamw'"
        )
    initial = settings.initial
    if initial is None:
        return new_parameters(settings, rows, symbols, seed).double()
    if (initial.num_states, initial.vocabulary_size) != (settings.n_states, symbols):
        raise ValueError(
            f"the initial HMM has {initial.num_states} states and {initial.vocabulary_size} "
            f"symbols, not {settings.n_states} and {symbols}"
        )
    hmm = initial.to("cpu", torch.float64)
    module = params.build("scalar", ScalarOptions(), hmm.support, None).double()
    tables = module.tables()
    assert tables is not None, "scalar parameters are tables"
    given = (hmm.start, hmm.transitions.log_probs(), hmm.emission)
    with torch.no_grad():
        for table, log_probs in zip(tables, given, strict=True):
            table.copy_(log_probs)
    return module


def _refuse_impossible(hmm: HMM, rows: Rows) -> None:
    """ValueError that names the first sequence of probability zero."""
    for chosen, ids, lengths in rows.batches():
        impossible = torch.nonzero(~hmm.log_prob(ids, lengths).isfinite())
        if len(impossible):
            raise ValueError(
                f"sequence {chosen[int(impossible[0])]} has probability zero in the initial HMM, "
                "so nothing can be learned from it"
            )
    raise ValueError("the likelihood is no longer a finite number; use more smoothing")


def _settled(history: list[float], rows: Rows, tolerance: float) -> bool:
    if len(history) < 2:
        return False
    return abs(history[-1] - history[-2]) < tolerance * rows.symbols
