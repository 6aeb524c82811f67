"""The settings of a `SequenceHMM`, and what they may be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Literal, Protocol, cast

import numpy as np

from bighmm.base.settings import Positive, fill
from bighmm.hmm import HMM

COUNTS = (
    *("n_states", "n_symbols", "n_blocks", "n_states_per_symbol"),
    *("iterations", "batch_size", "n_init"),
)
NUMBERS = ("tolerance", "tol", "smoothing", "lr")
OPTIONAL = ("n_symbols", "tol")  # which may be None
TABLES = {"s": "startprob", "t": "transmat", "e": "emissionprob"}
PRIORS = {f"{name}_prior": letter for letter, name in TABLES.items()}


class Settings(Protocol):
    """The settings that fitting needs; see `SequenceHMM` for what they mean."""

    n_states: int
    n_symbols: int | None
    symbols: Sequence[str] | None
    support: Literal["dense", "blocked", "per-symbol"]
    n_blocks: int
    n_states_per_symbol: int
    parameterisation: str
    options: dict[str, Any] | None
    optimizer: Literal["baum-welch", "adamw"]
    iterations: int
    tolerance: float
    tol: float | None
    smoothing: float
    startprob_prior: Any
    transmat_prior: Any
    emissionprob_prior: Any
    params: str
    init_params: str | None
    lr: float
    batch_size: int
    n_init: int
    initial: HMM | None
    unseen: Literal["error", "smooth"]
    verbose: bool


@dataclass(frozen=True)
class SavedSettings:
    """The settings as a file has them; `initial` is not kept, arrays are lists."""

    n_states: Positive
    n_symbols: Positive | None = None
    symbols: list[str] | None = None
    unseen: Literal["error", "smooth"] = "error"
    support: Literal["dense", "blocked", "per-symbol"] = "dense"
    n_blocks: Positive = 8
    n_states_per_symbol: Positive = 8
    parameterisation: str = "scalar"
    options: dict[str, Any] | None = None
    optimizer: Literal["baum-welch", "adamw"] = "baum-welch"
    iterations: Positive = 100
    tolerance: float = 1e-5
    tol: float | None = None
    smoothing: float = 0.0
    startprob_prior: float | list[Any] | None = None
    transmat_prior: float | list[Any] | None = None
    emissionprob_prior: float | list[Any] | None = None
    params: str = "ste"
    init_params: str | None = None
    lr: float = 0.01
    batch_size: Positive = 32
    n_init: Positive = 1
    initial: None = None
    random_state: int | None = None
    verbose: bool | int = False


def check_saved(settings: dict[str, Any], where: str) -> None:
    """Raises ValueError if a file cannot have these settings; `where` begins the message."""
    check_settings(cast(Settings, fill(SavedSettings, settings, where)))


def check_settings(settings: Settings) -> None:
    """Raises ValueError for the first setting that is not of its kind."""
    for name in COUNTS:
        value = getattr(settings, name)
        if name in OPTIONAL and value is None:
            continue
        check_count(name, value)
    for name in NUMBERS:
        value = getattr(settings, name)
        if name in OPTIONAL and value is None:
            continue
        if not isinstance(value, Real) or math.isnan(value):
            raise ValueError(f"{name} must be a number, not {value!r}")
    if settings.initial is not None and not isinstance(settings.initial, HMM):
        raise ValueError(f"initial must be an HMM or None, not {type(settings.initial).__name__}")
    for name in ("params", "init_params"):
        value = getattr(settings, name)
        if value is not None and not (isinstance(value, str) and {*value} <= {*TABLES}):
            raise ValueError(
                f"{name} must be of the letters s (start), t (transitions) and e (emissions), not "
                f"{value!r}"
            )
    check_unseen(settings.unseen)
    if settings.optimizer == "adamw":
        _check_descent(settings)


def check_count(name: str, value: Any) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")


def check_unseen(unseen: str) -> None:
    if unseen not in ("error", "smooth"):
        raise ValueError(f"unseen must be 'error' or 'smooth', not {unseen!r}")


def prior_of(settings: Settings, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The numbers of a Dirichlet prior, one for each cell of its table; without one, 1 and the
    smoothing."""
    given = getattr(settings, name)
    try:
        prior = np.asarray(1.0 + settings.smoothing if given is None else given, np.float64)
        prior = np.broadcast_to(prior, shape)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a number or an array of shape {shape}") from None
    if not np.isfinite(prior).all() or (prior <= 0).any():
        raise ValueError(f"{name} must have finite numbers above 0 (1 for no prior)")
    return prior


def _check_descent(settings: Settings) -> None:
    """Raises ValueError for settings that only Baum-Welch has."""
    given = [name for name in PRIORS if getattr(settings, name) is not None]
    if settings.params != "ste":
        given.append("params")
    if settings.init_params is not None:
        given.append("init_params")
    if settings.initial is not None:
        given.append("initial")
    if settings.smoothing:
        given.append("smoothing")
    if given:
        raise ValueError(f"{given[0]} is for optimizer='baum-welch'; leave it out for 'adamw'")
