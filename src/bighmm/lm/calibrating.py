"""Calibration of a trained HMM: factors of its logits that make held-out text likeliest.

A model that is trained for long is surer of the next block than it is right. A factor below one of
these logits mends that, and the model stays an exactly normalised HMM of the same size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from bighmm.data.corpus import Corpus
from bighmm.lm.hmmlm import HMMLM
from bighmm.model.calibration import UNCALIBRATED, Calibration

STEPS = (0.15, 0.05)  # of the logarithm of a factor: in the first round over the factors, and then
FARTHEST = 0.7  # that a factor's logarithm changes in one round
ENOUGH = 1e-4  # gain in nats per token; a round with less is the last
ROUNDS = 4
Said = Callable[[Calibration, float], None]


@dataclass(frozen=True)
class Calibrated:
    """What was found, with the perplexity of the text that it was found on."""

    calibration: Calibration
    before: float  # without any factors
    after: float

    @property
    def sentence(self) -> str:
        """For people."""
        factors = ", ".join(
            f"{name} × {factor:.3f}"
            for name, factor in asdict(self.calibration).items()
            if factor != 1.0
        )
        return f"{factors or 'nothing'}; perplexity {self.before:.2f} -> {self.after:.2f}"


def check_calibrates(lm: Any) -> tuple[str, ...]:
    """The names of the factors that a model has; ValueError if it has none."""
    names: tuple[str, ...] = getattr(lm.params, "calibrates", ())
    if not names:
        kind = getattr(lm, "parameterisation", "other")
        raise ValueError(
            f"a model of {kind} parameters cannot be calibrated; its logits must come from vectors"
        )
    return names


def calibrate(
    lm: HMMLM,
    text: Corpus | Tensor | np.ndarray | list[int],
    split: str = "valid",
    said: Said = lambda factors, found: None,
) -> Calibrated:
    """Set the calibration of a model to the one that makes a text likeliest.

    text: a corpus, of which the `split` is used, or a stream of token ids with their end marks.

    One factor after the other, each where a parabola through three of its values is lowest, until
    a round gains nothing. Some twenty evaluations of the text. said: hears of each.

    Raises ValueError for a model that has no such factors, and one of other words.
    """
    names = check_calibrates(lm)

    def nats(factors: Calibration) -> float:
        """Per token."""
        lm.params.calibration = factors
        lm.clear_cache()
        found = math.log(lm.perplexity(text, split=split).perplexity)
        said(factors, math.exp(found))
        return found

    best = UNCALIBRATED
    before = lowest = nats(best)
    for number in range(ROUNDS):
        step, last = STEPS[min(number, len(STEPS) - 1)], lowest
        for name in names:
            best, lowest = _along(name, best, lowest, step, nats)
        if last - lowest < ENOUGH:
            break
    lm.params.calibration = best
    lm.clear_cache()
    return Calibrated(best, math.exp(before), math.exp(lowest))


def _along(
    name: str,
    best: Calibration,
    lowest: float,
    step: float,
    nats: Callable[[Calibration], float],
) -> tuple[Calibration, float]:
    """The best of the values tried of one factor, and its nats per token."""
    middle = math.log(getattr(best, name))

    def at(place: float) -> tuple[Calibration, float]:
        factors = replace(best, **{name: math.exp(middle + place)})
        return factors, nats(factors)

    tried = [(best, lowest), at(-step), at(step)]
    low, high = tried[1][1] - lowest, tried[2][1] - lowest
    if low + high > 0:  # a parabola with a lowest point
        place = step * (low - high) / (low + high) / 2
        if abs(place) not in (0.0, step):
            tried.append(at(max(-FARTHEST, min(FARTHEST, place))))
    return min(tried, key=lambda found: found[1])
