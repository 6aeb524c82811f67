"""Random numbers as a function of a key: the same on every device, and nothing to save.

`scrambled` is the finaliser of the splitmix64 generator in wrapping 64-bit arithmetic. For samples
`generator_for` gives one of torch's own generators.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bighmm.base.settings import check_seed

GOLDEN = 0x9E3779B97F4A7C15 - 2**64
FIRST = 0xBF58476D1CE4E5B9 - 2**64
SECOND = 0x94D049BB133111EB - 2**64


def generator_for(device: torch.device, seed: int | None) -> torch.Generator:
    """A generator with a seed or, without one, with different numbers every time."""
    generator = torch.Generator(device)
    if seed is None:
        generator.seed()
        return generator
    check_seed(seed)
    return generator.manual_seed(seed)


def scrambled(x: Tensor) -> Tensor:
    """A one-to-one map of int64 numbers onto numbers that look random."""
    x = x * GOLDEN
    x = (x ^ _shifted(x, 30)) * FIRST
    x = (x ^ _shifted(x, 27)) * SECOND
    return x ^ _shifted(x, 31)


def key(seed: int, step: int | Tensor) -> Tensor:
    """One number () for a step of a run with `seed`, where `step` is."""
    of_seed = scrambled(torch.tensor(seed + 1))
    return scrambled(torch.as_tensor(step) + of_seed.item())


def noise(of_key: Tensor, count: int) -> Tensor:
    """`count` different int64 numbers (count,), on the key's device."""
    return scrambled(of_key + torch.arange(count, device=of_key.device))


def _shifted(x: Tensor, bits: int) -> Tensor:
    """x >> bits as if unsigned."""
    return (x >> bits) & (2 ** (64 - bits) - 1)
