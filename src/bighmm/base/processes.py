"""Several processes that do one piece of work together, under PyTorch's launcher.

`torchrun --nproc-per-node N -m bighmm …` starts N processes of the same command. `start` lets them
find each other; everything else works as well with a single process, for which nothing is sent.

The first process (number 0) writes files and speaks; the others do their share and are silent.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bighmm.base import launch

BUCKET = 1 << 22  # numbers that are sent together
PATIENCE = timedelta(minutes=30)  # for a process that does something alone, such as clustering


class Lost(ValueError):
    """Another process has ended, or cannot be reached."""


@dataclass(frozen=True)
class Processes:
    """Which process this is, and of how many."""

    number: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        return self.number == 0

    @property
    def alone(self) -> bool:
        return self.count == 1

    def share(self, total: int) -> slice:
        """The part of `total` things that is this process's, as equal as possible."""
        return slice(total * self.number // self.count, total * (self.number + 1) // self.count)

    def sum_(self, tensors: Iterable[Tensor]) -> None:
        """Replace tensors by their sums over all processes. The host does not wait on a GPU."""
        if self.alone:
            return
        for bucket in buckets(tensors):
            flat = torch.cat([t.reshape(-1) for t in bucket]) if len(bucket) > 1 else bucket[0]
            flat = flat.contiguous()
            if not flat.is_cuda:
                flat = flat.to(_device())
            with _named():
                torch.distributed.all_reduce(flat)
            parts = flat.split([t.numel() for t in bucket]) if len(bucket) > 1 else [flat]
            for tensor, part in zip(bucket, parts, strict=True):
                if tensor.data_ptr() != part.data_ptr():
                    tensor.copy_(part.view_as(tensor))

    def sums(self, *values: float) -> list[float]:
        """The sums of numbers over all processes, in double precision."""
        if self.alone:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=_device())
        self.sum_([total])
        return total.tolist()

    def join(self, tensor: Tensor) -> Tensor:
        """Rows of all processes, one after the other; they may have different numbers of rows."""
        if self.alone:
            return tensor
        counts = [int(n) for n in self.from_each(len(tensor))]
        rows = tensor.new_zeros(max(counts), *tensor.shape[1:])
        rows[: len(tensor)] = tensor
        kind = rows.dtype
        sent = rows.to(torch.uint8) if kind == torch.bool else rows
        found = [torch.empty_like(sent) for _ in counts]
        with _named():
            torch.distributed.all_gather(found, sent.contiguous())
        return torch.cat([part[:n] for part, n in zip(found, counts, strict=True)]).to(kind)

    def from_each(self, value: Any) -> list[Any]:
        """A small object of every process."""
        if self.alone:
            return [value]
        found: list[Any] = [None] * self.count
        with _named():
            torch.distributed.all_gather_object(found, value)
        return found

    def from_first(self, value: Any) -> Any:
        """The object of the first process; tensors are better sent by `copy_first_`."""
        if self.alone:
            return value
        held = [value]
        with _named():
            torch.distributed.broadcast_object_list(held, device=_device())
        return held[0]

    def copy_first_(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by those of the first process."""
        if self.alone:
            return
        for tensor in tensors:
            sent = tensor.detach().contiguous()
            with _named():
                torch.distributed.broadcast(sent, 0)
            if sent.data_ptr() != tensor.data_ptr():
                tensor.detach().copy_(sent)

    def tensors_from_first(self, tensors: Mapping[str, Tensor] | None) -> Mapping[str, Tensor]:
        """Named tensors of the first process, which alone gives them; on the CPU of the others."""
        if self.alone:
            assert tensors is not None
            return tensors
        known = {} if tensors is None else {n: tensors[n] for n in tensors}
        shapes = self.from_first({n: (tuple(t.shape), t.dtype) for n, t in known.items()})
        found = {}
        for name, (shape, kind) in shapes.items():
            tensor = known[name].cpu() if self.first else torch.empty(shape, dtype=kind)
            plain = tensor.to(torch.uint8) if kind == torch.bool else tensor
            sent = plain.to(_device(), copy=True)
            self.copy_first_([sent])
            found[name] = sent.to("cpu", kind)
        return found

    @contextmanager
    def first_does(self) -> Iterator[bool]:
        """Context whose body only the first process should do (it is told so); the others wait.

        If the first fails, so do all, with the same sentence.
        """
        failure: BaseException | None = None
        if self.first:
            try:
                yield True
            except BaseException as error:
                failure = error
        else:
            yield False
        said = self.from_first(None if failure is None else str(failure))
        if failure is not None:
            raise failure
        if said is not None:
            raise ValueError(said)


ALONE = Processes()
_current = ALONE


def current() -> Processes:
    """The processes that `start` has found."""
    return _current


@contextmanager
def start(device: torch.device) -> Iterator[Processes]:
    """Context in which the processes of the launcher know each other, if there are several.

    device: that of this process. With GPUs NCCL sends, otherwise gloo. Raises `Lost` with one
    sentence if a process cannot be reached.
    """
    global _current
    if not launch.asked_for() or not _current.alone:
        yield _current
        return
    import torch.distributed as distributed

    backend = "nccl" if device.type == "cuda" and distributed.is_nccl_available() else "gloo"
    with _named():
        distributed.init_process_group(backend, timeout=PATIENCE)
    _current = Processes(distributed.get_rank(), distributed.get_world_size())
    try:
        yield _current
    finally:
        _current = ALONE
        distributed.destroy_process_group()


def fingerprint_of_code() -> str:
    """A hash of the package's source, which must be the same in all processes."""
    digest, home = hashlib.sha256(), Path(__file__).resolve().parent.parent
    for path in sorted(home.rglob("*.py")):
        digest.update(path.relative_to(home).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def local_device(name: str) -> str:
    """The device of this process where one GPU is meant: each process of a machine has its own."""
    if not launch.asked_for() or name not in ("auto", "cuda") or not torch.cuda.is_available():
        return name
    return f"cuda:{launch.place_on_machine() % torch.cuda.device_count()}"


def buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Tensors of one type together, up to `BUCKET` numbers; larger ones alone."""
    waiting: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        held = waiting.setdefault(tensor.dtype, [])
        if held and sum(t.numel() for t in held) + tensor.numel() > BUCKET:
            yield held
            held = waiting[tensor.dtype] = []
        held.append(tensor)
    yield from (held for held in waiting.values() if held)


def _device() -> torch.device:
    """Where numbers must be to be sent."""
    nccl = torch.distributed.get_backend() == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if nccl else torch.device("cpu")


@contextmanager
def _named() -> Iterator[None]:
    """Context in which errors of torch.distributed become one sentence."""
    try:
        yield
    except (RuntimeError, ValueError) as error:
        count, place = os.environ.get("WORLD_SIZE", "?"), os.environ.get("RANK", "?")
        where = f"{os.environ.get('MASTER_ADDR', '?')}:{os.environ.get('MASTER_PORT', '?')}"
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise Lost(
            f"process {place} of {count} has lost the others (meeting at {where}): {reason}"
        ) from None
