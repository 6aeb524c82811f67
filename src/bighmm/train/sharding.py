"""An optimiser whose moments are shared out over processes, by rows of every parameter.

Every process has all parameters and, once they are added up, all gradients. It keeps the moments of
its own rows only, changes these rows, and then all processes fetch each other's. A parameter with
fewer rows than there are processes is changed by all of them in the same way.

torch's own `ZeroRedundancyOptimizer` shares out whole parameters. Most numbers of a large HMM are
in one or two tables of state embeddings, so one process would have nearly all; and it does not know
gradients of some rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bighmm.base.processes import Processes

Groups = list[dict[str, Any]]


@dataclass(frozen=True)
class _Shard:
    parameter: nn.Parameter
    own: nn.Parameter  # the rows of this process, in the same memory; all of them if it is whole
    rows: slice | None  # None: it is whole


class ShardedAdamW:
    """AdamW on the rows of this process; `state_dict` and `load_moments` are about all rows.

    make: gives the optimiser of groups of parameters; `tables` are those that are changed by rows.
    """

    def __init__(
        self,
        groups: Groups,
        make: Callable[[Groups, list[nn.Parameter]], torch.optim.AdamW],
        here: Processes,
        tables: list[nn.Parameter],
    ) -> None:
        self.here = here
        self.shards = [_shard_of(p, here) for group in groups for p in group["params"]]
        own = {id(shard.parameter): shard.own for shard in self.shards}
        some = [{**group, "params": [own[id(p)] for p in group["params"]]} for group in groups]
        self.inner = make(some, [own[id(table)] for table in tables])

    @property
    def param_groups(self) -> Groups:
        return self.inner.param_groups

    @property
    def grad_scale(self) -> Tensor | None:
        return getattr(self.inner, "grad_scale", None)

    @grad_scale.setter
    def grad_scale(self, scale: Tensor) -> None:
        self.inner.grad_scale = scale  # type: ignore[attr-defined]

    def zero_grad(self, set_to_none: bool = True) -> None:
        assert set_to_none
        for shard in self.shards:
            shard.parameter.grad = shard.own.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """One step of all processes; safe to capture where AdamW is, with NCCL."""
        for shard in self.shards:
            shard.own.grad = _own_grad(shard)
        self.inner.step()
        whole = []
        for shard in self.shards:
            grad = shard.parameter.grad
            if shard.rows is None or grad is None:
                continue
            if grad.is_sparse:
                self._fetch_rows(shard, grad._indices().squeeze(0))
            else:
                whole.append(shard.parameter.data)
        self.here.exchange_(whole)

    def state_dict(self) -> dict[str, Any]:
        """The state as torch has it for one process, by the number of the parameter.

        All processes must ask; the whole moments are on the CPU of the first, which alone needs
        them.
        """
        found = self.inner.state_dict()
        for index, moments in found["state"].items():
            shard = self.shards[index]
            for name, tensor in moments.items():
                if shard.rows is not None and tensor.dim() > 0:
                    moments[name] = self.here.rows_on_first(tensor)
        return found

    def load_moment(self, index: int, name: str, value: Tensor) -> None:
        """Take what is this process's of a moment of a parameter."""
        shard = self.shards[index]
        if shard.rows is not None and value.dim() > 0:
            value = value[shard.rows].clone()
        value = value.to(shard.own.device)
        self.inner.state[shard.own][name] = value

    def forget(self) -> None:
        """Drop all moments."""
        self.inner.state.clear()

    @property
    def parameters(self) -> list[nn.Parameter]:
        return [shard.parameter for shard in self.shards]

    def _fetch_rows(self, shard: _Shard, rows: Tensor) -> None:
        """Fetch the rows (n,) of a table that had a gradient; a sum, as one process has each."""
        mine = _among(rows, shard.rows).unsqueeze(1)
        found = torch.where(mine, shard.parameter.data.index_select(0, rows), 0.0)
        self.here.sum_([found])
        shard.parameter.data.index_copy_(0, rows, found)


def _shard_of(parameter: nn.Parameter, here: Processes) -> _Shard:
    if parameter.dim() == 0 or len(parameter) < here.count or not parameter.is_contiguous():
        return _Shard(parameter, parameter, None)
    rows = here.share(len(parameter))
    return _Shard(parameter, nn.Parameter(parameter.data[rows]), rows)


def _own_grad(shard: _Shard) -> Tensor | None:
    """The gradient of a process's own rows; zero in rows of a sparse one that are not its own."""
    grad = shard.parameter.grad
    if grad is None or shard.rows is None:
        return grad
    if not grad.is_sparse:
        return grad[shard.rows]
    rows, last = grad._indices().squeeze(0), shard.rows.stop - shard.rows.start - 1
    mine = _among(rows, shard.rows).unsqueeze(1)
    # Rows with a zero gradient are passed over, wherever they are said to be.
    local = (rows - shard.rows.start).clamp(0, last).unsqueeze(0)
    values = torch.where(mine, grad._values(), 0.0)
    return torch.sparse_coo_tensor(local, values, shard.own.shape, check_invariants=False)


def _among(rows: Tensor, some: slice | None) -> Tensor:
    assert some is not None
    return (rows >= some.start) & (rows < some.stop)
