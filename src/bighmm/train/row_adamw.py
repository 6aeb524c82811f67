"""AdamW that changes only those rows of a table that had a gradient."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from bighmm.ops.impl import use_triton
from bighmm.ops.many_adamw import Places, update_many
from bighmm.ops.row_adamw import Moments, Rates, update_rows

FIRST, SECOND = "exp_avg", "exp_avg_sq"  # as torch names them
STEP, ROW_STEPS = "step", "row_steps"


class RowAdamW(torch.optim.AdamW):
    """AdamW in which every row of a table has a history of its own.

    A row gradient is a sparse tensor (Z, H) whose indices (1, n) are different rows, as
    `ops.gather.take_rows` gives it. Each row of such a table follows AdamW over exactly those
    steps in which it had a gradient, that is, one that is not zero everywhere. In all other steps
    its numbers, its moments and its step count stay as they are, and no weight decay is taken from
    it. Where every row has a gradient in every step, this is AdamW.

    A parameter that never had a row gradient and is none of `tables` is updated by
    `torch.optim.AdamW` itself, or as it does by `ops.many_adamw`, which is faster on a GPU. A table
    that has a dense gradient is updated as by rows, each with its own step count. The state of a
    table has `row_steps` (Z,) beside torch's tensors, whose `step` counts no further. A state of
    `torch.optim.AdamW` can be loaded: its step is that of every row.

    grad_scale: what the fused optimiser divides gradients by (see `Descent.norm`); rows too.
    """

    grad_scale: Tensor | None = None

    def __init__(
        self,
        params: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        tables: Iterable[nn.Parameter] = (),
        fused: bool | None = None,
        capturable: bool = False,
    ) -> None:
        """tables: parameters (Z, H) that are updated by rows even if their gradient is dense."""
        super().__init__(params, lr, betas, eps, weight_decay, fused=fused, capturable=capturable)
        self.tables = {id(table) for table in tables}
        self._places: dict[int, Places] = {}  # by the group's number

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One step; captured as it is, once every table has had its first row gradient."""
        by_rows = [
            (parameter, parameter.grad, group)
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None and self._has_rows(parameter)
        ]
        for parameter, _, _ in by_rows:
            parameter.grad = None  # so that torch passes over it
        done = [pair for group in self.param_groups for pair in self._together(group)]
        super().step()
        for parameter, grad in done:
            parameter.grad = grad
        for parameter, grad, group in by_rows:
            parameter.grad = grad
            sparse = grad.is_sparse
            update_rows(
                parameter,
                self._moments(parameter),
                grad._indices().squeeze(0) if sparse else None,
                grad._values() if sparse else grad,
                _rates(group),
                self.grad_scale,
            )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As torch's, which would make real numbers of the steps."""
        super().load_state_dict(state_dict)
        parameters = [p for group in self.param_groups for p in group["params"]]
        for index, saved in state_dict["state"].items():
            if ROW_STEPS in saved:
                steps = saved[ROW_STEPS].to(parameters[index].device, copy=True)
                self.state[parameters[index]][ROW_STEPS] = steps

    def _together(self, group: dict[str, Any]) -> list[tuple[nn.Parameter, Tensor]]:
        """Update the parameters of a group at once, on a GPU, if they had a step before.

        Returns those that are done with their gradients, which are taken away from them.
        """
        some = [p for p in group["params"] if p.grad is not None and p.dtype == torch.float32]
        if not some or not use_triton(some[0]) or any(STEP not in self.state[p] for p in some):
            return []
        states = [self.state[p] for p in some]
        tensors = [
            (p, state[FIRST], state[SECOND], state[STEP])
            for p, state in zip(some, states, strict=True)
        ]
        index = self.param_groups.index(group)
        if index not in self._places or not self._places[index].are_of(tensors):
            if torch.cuda.is_current_stream_capturing():
                return []
            self._places[index] = Places.of(tensors)
        done = [(p, p.grad) for p in some if p.grad is not None]
        update_many(self._places[index], [g for _, g in done], _rates(group), self.grad_scale)
        for parameter in some:
            parameter.grad = None
        return done

    def _has_rows(self, parameter: nn.Parameter) -> bool:
        assert parameter.grad is not None
        if id(parameter) in self.tables or parameter.grad.is_sparse:
            return True
        return ROW_STEPS in self.state.get(parameter, {})

    def _moments(self, parameter: nn.Parameter) -> Moments:
        state = self.state[parameter]
        if ROW_STEPS not in state:
            if STEP not in state:
                state[STEP] = torch.zeros((), device=parameter.device)
                state[FIRST], state[SECOND] = (torch.zeros_like(parameter) for _ in range(2))
            state[ROW_STEPS] = state[STEP].to(parameter.device, torch.int32).repeat(len(parameter))
        return Moments(state[FIRST], state[SECOND], state[ROW_STEPS])


def _rates(group: dict[str, Any]) -> Rates:
    beta1, beta2 = group["betas"]
    return Rates(group["lr"], beta1, beta2, group["eps"], group["weight_decay"])
