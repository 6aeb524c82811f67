"""Seeds from what scikit-learn takes as `random_state`."""

from __future__ import annotations

from typing import Any

import numpy as np

RandomState = Any  # None, a whole number, or one of NumPy's two kinds of generators


def seed_of(random_state: RandomState) -> int:
    """A seed from None, a number, or one of NumPy's two kinds of generators; ValueError if not."""
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    if isinstance(random_state, (int, np.integer)) and 0 <= random_state < 2**63:
        return int(random_state)
    draw = getattr(random_state, "integers", None) or getattr(random_state, "randint", None)
    if draw is None:
        raise ValueError(
            f"random_state must be a whole number from 0 to 2**63 - 1, not {random_state!r}"
        )
    return int(draw(2**31))
