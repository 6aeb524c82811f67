"""Whether the numbers of a model that was read from a file are probabilities."""

from __future__ import annotations

import torch

from bighmm.base.tensor_files import check_numbers
from bighmm.model.model import Model

TOLERANCE = 1e-3  # the largest error of a log-probability by rounding a normaliser


def check_probabilities(model: Model) -> None:
    """Raises ValueError if numbers are NaN or infinite, or so large that rounding spoils them.

    s_ij − c_i is rounded as c_i is: from 8,400 on in float32, rows no longer sum to one.
    """
    for tensor in (model.start, *model.transitions.operands, *model.emissions.operands):
        check_numbers("", tensor, log_zeros=True)
    norm = model.transitions.norm
    if norm is not None:
        largest = float(norm.detach().abs().max())
        if not largest * torch.finfo(norm.dtype).eps < TOLERANCE:
            raise ValueError(f"the normaliser of its transitions reaches {largest:.3g}")
