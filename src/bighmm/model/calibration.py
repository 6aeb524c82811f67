"""Factors of a trained model's logits, which make it as sure as held-out text says it should be."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated

from bighmm.base.settings import Between

Factor = Annotated[float, Between(1e-3, 1e3)]


@dataclass(frozen=True)
class Calibration:
    """What logits are multiplied by before they are normalised; one leaves them as they are.

    Below one a distribution becomes flatter, above one sharper. The model stays exactly normalised.
    """

    blocks: Factor = 1.0
    """Of the next block, with transitions in two levels."""
    moves: Factor = 1.0
    """Of the next state: within its block, or with other transitions among all states."""
    words: Factor = 1.0
    """Of the word that a state emits."""

    def times(self, other: Calibration) -> Calibration:
        """The factors of one after the other."""
        theirs = asdict(other)
        return Calibration(**{name: own * theirs[name] for name, own in asdict(self).items()})


UNCALIBRATED = Calibration()
