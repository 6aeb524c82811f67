"""The sweeps over a chain of potentials as a binary tree: log₂ S rounds of batched products.

Neighbouring tiles are multiplied upwards, then the vectors at both ends of every node are passed
down. Rows past their end use the identity. Fewer rounds but more arithmetic than the loop (K³ per
product), which pays on a parallel machine when K is small against the time a launch takes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bighmm.ops.log_matmul import log_matmul


def both_sweeps(first: Tensor, tiles: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """log_alpha and log_beta, both (B, P, K), as the sweeps of `plain` give them."""
    batch, steps = tiles.shape[:2]
    if steps == 0:
        return first.unsqueeze(1), torch.zeros_like(first).unsqueeze(1)
    identity = torch.full_like(tiles[0, 0], -torch.inf).fill_diagonal_(0.0)
    inside = torch.arange(steps, device=tiles.device) + 1 < lengths.unsqueeze(1)
    level = torch.where(inside.view(batch, steps, 1, 1), tiles, identity)
    width = 1 << (steps - 1).bit_length()
    level = torch.cat([level, identity.expand(batch, width - steps, -1, -1)], dim=1)

    levels = [level]
    while levels[-1].shape[1] > 1:
        levels.append(log_matmul(levels[-1][:, 0::2], levels[-1][:, 1::2]))

    alpha = first.unsqueeze(1)  # at the left end of every node of a level, (B, nodes, K)
    beta = torch.zeros_like(first).unsqueeze(1)  # at the right end
    for level in levels[-2::-1]:
        left, right = level[:, 0::2], level[:, 1::2]
        middle_alpha = log_matmul(alpha.unsqueeze(2), left).squeeze(2)
        middle_beta = log_matmul(right, beta.unsqueeze(3)).squeeze(3)
        alpha = torch.stack([alpha, middle_alpha], dim=2).flatten(1, 2)
        beta = torch.stack([middle_beta, beta], dim=2).flatten(1, 2)

    last_alpha = log_matmul(alpha[:, steps - 1].unsqueeze(1), levels[0][:, steps - 1])
    first_beta = log_matmul(levels[0][:, 0], beta[:, 0].unsqueeze(2))
    log_alpha = torch.cat([alpha[:, :steps], last_alpha], dim=1)
    log_beta = torch.cat([first_beta.mT, beta[:, :steps]], dim=1)
    return log_alpha, log_beta
