"""The sweeps of a model in which any state may emit any word, in torch.

Filtered states are kept in log space. What a step multiplies with is given as a function, so that
any transitions can be used. Z states, B rows, T words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from bighmm.ops.log_matmul import finite_or_zero

Move = Callable[[Tensor], Tensor]  # (B, Z) -> (B, Z) in log space


class Windows(NamedTuple):
    """A batch of windows of words, and the state that is carried into each."""

    ids: Tensor  # (B, T) long
    fresh: Tensor  # (B, T) bool, the state is drawn from the start distribution; not for t = 0
    lengths: Tensor  # (B,) long
    carried: Tensor  # (B, Z) log p(state | what came before)
    carried_fresh: Tensor  # (B,) bool, the first state of the window is drawn anew

    def drawn_anew(self) -> Tensor:
        """(B, T) bool: the state at t is drawn from the start distribution."""
        fresh = self.fresh.clone()
        fresh[:, :1] = self.carried_fresh.unsqueeze(1)
        return fresh

    def inside(self) -> Tensor:
        """(B, T) bool: t is not in the padding."""
        time = self.ids.shape[1]
        return torch.arange(time, device=self.ids.device) < self.lengths.unsqueeze(1)


def forward(
    ahead: Move, start: Tensor, log_emission: Tensor, windows: Windows
) -> tuple[Tensor, Tensor]:
    """log p(z_t | x_1 … x_t) (B, T, Z), and log p(x_t | x_<t) (B, T), zero in the padding.

    ahead: log Σ_i exp(log_alpha_i) p(j | i). log_emission: log p(x_t | z_t) (B, T, Z). From the
    first impossible word of a row on, the filtered distribution is -inf.
    """
    fresh = windows.drawn_anew()
    current = windows.carried
    filtered = torch.empty_like(log_emission)
    gained = torch.empty_like(log_emission[..., 0])
    for t in range(log_emission.shape[1]):
        predicted = torch.where(fresh[:, t].unsqueeze(1), start, ahead(current))
        joint = predicted + log_emission[:, t]
        gained[:, t] = joint.logsumexp(1)
        current = joint - finite_or_zero(gained[:, t]).unsqueeze(1)
        filtered[:, t] = current
    possible = windows.carried.amax(1, keepdim=True) > -torch.inf
    gained[:, :1].masked_fill_(~possible, -torch.inf)
    lost = (gained == -torch.inf).cumsum(1) > 0
    if bool(lost.any()):
        filtered.masked_fill_(lost.unsqueeze(2), -torch.inf)
    return filtered, gained.masked_fill(~windows.inside(), 0.0)


def backward(back: Move, log_emission: Tensor, windows: Windows) -> Tensor:
    """log p(x_{t+1} … x_T | z_t) (B, T, Z), up to a factor per position.

    back: log Σ_j p(j | i) exp(log_beta_j).
    """
    fresh = windows.drawn_anew()
    result = torch.zeros_like(log_emission)
    for t in reversed(range(log_emission.shape[1] - 1)):
        ahead = log_emission[:, t + 1] + result[:, t + 1]
        ahead = ahead - finite_or_zero(ahead.amax(1, keepdim=True))
        moved = torch.where(fresh[:, t + 1].unsqueeze(1), 0.0, back(ahead))
        result[:, t] = torch.where((t + 1 < windows.lengths).unsqueeze(1), moved, 0.0)
    return result
