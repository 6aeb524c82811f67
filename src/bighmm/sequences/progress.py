"""When fitting ends, and what it tells meanwhile."""

from __future__ import annotations

import math
import sys
import warnings
from functools import cache

from bighmm.sequences.settings import Settings


class ConvergenceWarning(UserWarning):
    """Fitting has ended while the likelihood was still rising."""


class Progress:
    """The log-probabilities of one fit from one beginning."""

    def __init__(self, settings: Settings, observed: int, beginning: int) -> None:
        self.settings, self.beginning = settings, beginning
        self.history: list[float] = []
        self.limit = settings.tolerance * observed if settings.tol is None else settings.tol
        self.gain = math.inf  # by which the last iteration has raised log p
        self.converged = False

    def add(self, log_prob: float, compared: bool = True) -> None:
        """compared: whether it was measured in the same way as the one before."""
        if self.history and compared:
            self.gain = log_prob - self.history[-1]
            self.converged = bool(abs(self.gain) < self.limit)  # the limit may be NumPy's
        self.history.append(log_prob)
        if self.settings.verbose:
            self._tell()

    def _tell(self) -> None:
        which = f"beginning {self.beginning + 1}, " if self.settings.n_init > 1 else ""
        gain = f", gain {self.gain:.6g}" if self.gain < math.inf else ""
        number = len(self.history) - 1
        print(f"{which}iteration {number}: log p {self.history[-1]:.4f}{gain}", file=sys.stderr)


def warn_if_improving(progress: Progress) -> None:
    """Warn where all iterations were used and the last one has still gained more than the limit.

    There is no limit, and no warning, if it is 0: then all iterations were asked for.
    """
    if progress.converged or progress.limit <= 0 or progress.gain < 0:
        return
    warnings.warn(
        f"the log-probability still rose by {progress.gain:.3g} in the last of "
        f"{len(progress.history) - 1} iterations, more than {progress.limit:.3g}; use more "
        "iterations",
        _warning_class(),
        stacklevel=4,
    )


@cache
def _warning_class() -> type[Warning]:
    """That of scikit-learn as well, where it is in use."""
    if "sklearn.exceptions" not in sys.modules:
        return ConvergenceWarning
    from sklearn import exceptions

    return type("ConvergenceWarning", (ConvergenceWarning, exceptions.ConvergenceWarning), {})
