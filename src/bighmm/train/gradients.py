"""Gradients that are added up over processes while the backward pass goes on.

A bucket of parameters is sent as soon as all of them have their gradient, and all buckets are
waited for once the pass is over. Which parameters share a bucket, and the order in which buckets
are sent, follow from the order in which the first step got its gradients and from the sizes of the
parameters. Both are the same in all processes and after a restart, so sums are rounded alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn

from bighmm.base import processes
from bighmm.base.processes import Processes


class GradientSum:
    """The sum over all processes of the gradients of some parameters, in one window per step."""

    def __init__(self, parameters: Iterable[nn.Parameter], here: Processes) -> None:
        self.parameters, self.here = list(parameters), here
        self.plan: list[list[int]] | None = None  # the parameters of each bucket
        self.bucket_of: dict[int, int] = {}
        self._forget()
        self.collects = False
        for index, parameter in enumerate(self.parameters):
            parameter.register_post_accumulate_grad_hook(partial(self._ready, index))

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Context in which gradients are sent as they come; no other backward pass sends any."""
        self._forget()
        self.collects = True
        try:
            yield
        finally:
            self.collects = False

    def finish(self) -> None:
        """Wait until every gradient is the sum of those of all processes."""
        if self.plan is None:
            self._make_plan(self.here.from_first(self.seen))
        assert self.plan is not None
        while self.begun < len(self.plan):
            self._begin()
        for finish in self.flying:
            finish()
        self._forget()

    def _forget(self) -> None:
        self.seen: list[int] = []  # whose gradient is there, in order
        self.begun = 0  # buckets that were sent
        self.flying: list[Callable[[], None]] = []
        self.lacking = [len(bucket) for bucket in self.plan or []]

    def _ready(self, index: int, parameter: Tensor) -> None:
        """Called when the gradient of a parameter is complete."""
        if not self.collects:
            return
        self.seen.append(index)
        if self.plan is None or index not in self.bucket_of:
            assert self.plan is None, "every step has gradients of the same parameters"
            return
        self.lacking[self.bucket_of[index]] -= 1
        while self.begun < len(self.plan) and self.lacking[self.begun] == 0:
            self._begin()

    def _begin(self) -> None:
        assert self.plan is not None
        grads = [numbers_of(self.parameters[index]) for index in self.plan[self.begun]]
        self.flying.append(self.here.begin_sum([grad for grad in grads if grad is not None]))
        self.begun += 1

    def _make_plan(self, order: list[int]) -> None:
        # By the sizes of parameters: how many rows a sparse gradient has differs between steps.
        plan: list[list[int]] = []
        sizes: dict[torch.dtype, tuple[int, list[int]]] = {}
        for index in order:
            parameter = self.parameters[index]
            size, bucket = sizes.get(parameter.dtype, (0, []))
            if bucket and size + parameter.numel() > processes.BUCKET:
                size, bucket = 0, []
            if not bucket:
                plan.append(bucket)
            bucket.append(index)
            sizes[parameter.dtype] = (size + parameter.numel(), bucket)
        self.plan = plan
        self.bucket_of = {index: i for i, bucket in enumerate(plan) for index in bucket}


def numbers_of(parameter: nn.Parameter) -> Tensor | None:
    """The numbers of a gradient, of a sparse one those of its rows."""
    grad = parameter.grad
    return grad._values() if grad is not None and grad.is_sparse else grad
