"""A model with more states that begins as another one: each of its states is split into several.

State z of the old model becomes the states r·z … r·z + r - 1 of the new one. All of them have the
parameters of z, so a softmax over states gives each of them an r-th of what it gave z, and every
text has the probability that it had. Noise then lets them become different.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bighmm.model.params import Parameterisation


@torch.no_grad()
def split_states(old: Parameterisation, new: Parameterisation, noise: float, seed: int) -> None:
    """Set the parameters of `new` to those of `old`, whose states it has, or several of each.

    noise: standard deviation of what is added to the parameters of split states, as a share of
        that of the parameters; nothing is added where no state is split.

    Raises ValueError where the numbers of states or other sizes do not fit, or where a model of
    this parameterisation changes when its states are split.
    """
    before, after = old.support.num_states, new.support.num_states
    times = after // before
    if after != times * before:
        raise ValueError(
            f"{after:,} states cannot be split from {before:,}; use {before:,} or a multiple of it"
        )
    if times > 1 and not old.splits_states:
        raise ValueError(
            f"a model of {type(old).__name__} parameters changes when its states are split; use "
            f"{before:,} states"
        )
    new.calibration = old.calibration
    found = dict(old.named_parameters())
    targets = dict(new.named_parameters())
    if found.keys() != targets.keys():
        raise ValueError("the two models have different parameters; use the same options for both")
    generator = torch.Generator().manual_seed(seed)
    for name, target in targets.items():
        value = _repeated(found[name].to(target.device), target, times, name)
        if noise and value.shape != found[name].shape:
            spread = found[name].std(correction=0) if found[name].numel() > 1 else 0.0
            random = torch.randn(value.shape, generator=generator).to(value)
            value = value + noise * spread * random
        target.copy_(value)


def _repeated(value: Tensor, target: Tensor, times: int, name: str) -> Tensor:
    """`value` with what belongs to a state repeated, next to each other, to the shape of `target`.

    A dimension that differs is one of states, since everything else is as large in both.
    """
    fits = value.dim() == target.dim() and all(
        new in (size, times * size) for size, new in zip(value.shape, target.shape, strict=True)
    )
    if not fits:
        raise ValueError(
            f"{name} has the shape {tuple(value.shape)} in one model and {tuple(target.shape)} in "
            "the other; use the same options for both"
        )
    for dim, (size, new) in enumerate(zip(value.shape, target.shape, strict=True)):
        if size != new:
            value = value.repeat_interleave(times, dim=dim)
    return value
