"""Random numbers that are a function of a key, so that no generator state has to be saved.

They are the same on every device. The function is the splitmix64 generator: its finaliser
`scrambled`, in 64-bit arithmetic that wraps around. Samples use generators of torch instead
(`generator_for`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from bighmm.base.settings import check_seed

# The constants of splitmix64, as signed numbers.
GOLDEN = 0x9E3779B97F4A7C15 - 2**64
FIRST = 0xBF58476D1CE4E5B9 - 2**64
SECOND = 0x94D049BB133111EB - 2**64


def generator_for(device: torch.device, seed: int | None) -> torch.Generator:
    """A torch generator with the given seed, or with a random seed for None."""
    generator = torch.Generator(device)
    if seed is None:
        generator.seed()
        return generator
    check_seed(seed)
    return generator.manual_seed(seed)


def scrambled(x: Tensor) -> Tensor:
    """Numbers that look random, one for each int64 number in x; the map is one-to-one."""
    x = x * GOLDEN
    x = (x ^ _shift_right_unsigned(x, 30)) * FIRST
    x = (x ^ _shift_right_unsigned(x, 27)) * SECOND
    return x ^ _shift_right_unsigned(x, 31)


def key(seed: int, step: int | Tensor) -> Tensor:
    """The key () of a training step of a run with `seed`.

    If `step` is a tensor, the result has its shape and device.
    """
    scrambled_seed = scrambled(torch.tensor(seed + 1))
    return scrambled(torch.as_tensor(step) + scrambled_seed.item())


def noise(step_key: Tensor, count: int) -> Tensor:
    """`count` different int64 numbers (count,) that depend on a key (), on the key's device."""
    return scrambled(step_key + torch.arange(count, device=step_key.device))


def uniform(step_key: Tensor, count: int) -> Tensor:
    """`count` numbers (count,) from 0 to below 1, float64, that depend on a key ()."""
    return _shift_right_unsigned(noise(step_key, count), 11).double() * 2.0**-53


def _shift_right_unsigned(x: Tensor, bits: int) -> Tensor:
    """x >> bits, with zeros as the new high bits also where x is negative."""
    return (x >> bits) & (2 ** (64 - bits) - 1)
