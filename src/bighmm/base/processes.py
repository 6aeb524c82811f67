"""Several processes that do one piece of work together, under PyTorch's launcher.

`torchrun --nproc-per-node N -m bighmm …` starts N processes of the same command. `start` lets them
find each other; everything else works as well with a single process, for which nothing is sent.

The first process (number 0) writes files and speaks; the others do their share and are silent.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bighmm.base import launch
from bighmm.base.meeting import Lost, Meeting, meet, noticed

__all__ = ["ALONE", "Lost", "Processes", "Traffic", "buckets", "current", "in_step", "start"]

BUCKET = 1 << 22  # numbers that are sent together
PATIENCE = timedelta(minutes=30)  # in a step
LONG_PATIENCE = timedelta(days=7)  # for a process that does something alone, such as clustering


@dataclass
class Traffic:
    """What a process has given away to be added up or joined, so far."""

    calls: int = 0
    bytes: int = 0

    def count(self, tensor: Tensor) -> None:
        self.calls += 1
        self.bytes += tensor.nbytes


@dataclass(frozen=True)
class Processes:
    """Which process this is, and of how many."""

    number: int = 0
    count: int = 1
    meeting: Meeting | None = field(default=None, compare=False, repr=False)
    patient: Any = field(default=None, compare=False, repr=False)  # a gloo group that waits long
    traffic: Traffic = field(default_factory=Traffic, compare=False, repr=False)

    @property
    def first(self) -> bool:
        return self.number == 0

    @property
    def alone(self) -> bool:
        return self.count == 1

    @property
    def capturable(self) -> bool:
        """Whether a CUDA graph can hold what is sent."""
        return self.alone or torch.distributed.get_backend() == "nccl"

    def share(self, total: int) -> slice:
        """The part of `total` things that is this process's, as equal as possible."""
        return self.share_of(self.number, total)

    def share_of(self, number: int, total: int) -> slice:
        """The part of `total` things that is that of the process with this number."""
        return slice(total * number // self.count, total * (number + 1) // self.count)

    def sum_(self, tensors: Iterable[Tensor]) -> None:
        """Replace tensors by their sums over all processes. The host does not wait on a GPU."""
        if self.alone:
            return
        for finish in [self.begin_sum(bucket) for bucket in buckets(tensors)]:
            finish()

    def begin_sum(self, tensors: Sequence[Tensor]) -> Callable[[], None]:
        """Begin to add up tensors of one type; what comes back waits, and puts the sums in place.

        All processes must begin their sums in the same order. With NCCL only the GPU waits, and a
        CUDA graph can hold all of it.
        """
        if self.alone:
            return lambda: None
        parts = [t.reshape(-1) for t in tensors]
        sent = _where_sent(torch.cat(parts) if len(parts) > 1 else parts[0])
        self.traffic.count(sent)
        with noticed(self.meeting):
            work = torch.distributed.all_reduce(sent, group=self._group(sent), async_op=True)

        def finish() -> None:
            with noticed(self.meeting):
                work.wait()
            for tensor, part in zip(tensors, sent.split([t.numel() for t in tensors]), strict=True):
                if tensor.data_ptr() != part.data_ptr() or tensor.device != part.device:
                    tensor.copy_(part.view_as(tensor))

        return finish

    def sums(self, *values: float) -> list[float]:
        """The sums of numbers over all processes, in double precision."""
        total = torch.tensor(values, dtype=torch.float64)
        self.sum_([total])
        return total.tolist()

    def join(self, tensor: Tensor) -> Tensor:
        """Rows of all processes, one after the other; they may have different numbers of rows."""
        if self.alone:
            return tensor
        counts = [int(n) for n in self.from_each(len(tensor))]
        sent = _where_sent(_padded(tensor, max(counts)))
        found = [torch.empty_like(sent) for _ in counts]
        self._gather(found, sent)
        rows = torch.cat([part[:n] for part, n in zip(found, counts, strict=True)])
        return rows.to(tensor.device, tensor.dtype)

    def exchange_(self, tensors: Sequence[Tensor]) -> None:
        """Of each tensor, fetch the rows of all processes; each has changed its own `share`."""
        if self.alone:
            return
        for some in buckets(tensors):
            most = sum(_largest_share(self, t) for t in some)
            own = torch.cat([t[self.share(len(t))].reshape(-1) for t in some])
            sent = _where_sent(_padded(own, most))
            found = [torch.empty_like(sent) for _ in range(self.count)]
            self._gather(found, sent)
            for number, rows in enumerate(found):
                if number != self.number:
                    _put_rows(some, rows, [self.share_of(number, len(t)) for t in some])

    def rows_on_first(self, tensor: Tensor) -> Tensor:
        """Rows of all processes, on the first one's CPU; the others get their own."""
        if self.alone:
            return tensor
        parts = self.to_first(tensor.detach().cpu())
        return tensor if parts is None else torch.cat(parts)

    def from_each(self, value: Any) -> list[Any]:
        """A small object of every process."""
        if self.alone:
            return [value]
        found: list[Any] = [None] * self.count
        with noticed(self.meeting):
            torch.distributed.all_gather_object(found, value, group=self.patient)
        return found

    def to_first(self, value: Any) -> list[Any] | None:
        """The objects of all processes, in order, for the first one; None for the others."""
        if self.alone:
            return [value]
        found = [None] * self.count if self.first else None
        with noticed(self.meeting):
            torch.distributed.gather_object(value, found, dst=0, group=self.patient)
        return found

    def from_first(self, value: Any) -> Any:
        """The object of the first process; tensors are better sent by `copy_first_`."""
        if self.alone:
            return value
        held = [value]
        with noticed(self.meeting):
            torch.distributed.broadcast_object_list(held, src=0, group=self.patient)
        return held[0]

    def copy_first_(self, tensors: Sequence[Tensor]) -> None:
        """Replace tensors by those of the first process."""
        if self.alone:
            return
        for tensor in tensors:
            sent = _where_sent(tensor.detach().contiguous())
            with noticed(self.meeting):
                torch.distributed.broadcast(sent, 0, group=self._group(sent))
            if sent.data_ptr() != tensor.data_ptr() or sent.device != tensor.device:
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
            sent = plain.clone()
            self.copy_first_([sent])
            found[name] = sent.to(kind)
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

    def require_alike(self, what: Mapping[str, str]) -> None:
        """Raises ValueError if another process has a different value of one of these things."""
        if self.alone:
            return
        mine = {"version of torch": torch.__version__, "code": fingerprint_of_code(), **what}
        first, *others = self.from_each(mine)
        for number, other in enumerate(others, 1):
            for name, value in first.items():
                if other.get(name) != value:
                    raise ValueError(
                        f"process {number} of {self.count} has another {name} than process 0; all "
                        "processes, on all machines, need the same"
                    )

    def next_turn(self, name: str) -> int:
        """0, 1, … for those who ask, in the order in which they do; for work of unequal length."""
        assert self.meeting is not None, "there are several processes"
        return self.meeting.next_turn(name)

    def _gather(self, found: list[Tensor], sent: Tensor) -> None:
        self.traffic.count(sent)
        with noticed(self.meeting):
            torch.distributed.all_gather(found, sent, group=self._group(sent))

    def _group(self, sent: Tensor) -> Any:
        """Numbers of a GPU go through NCCL, all others through gloo."""
        nccl = torch.distributed.get_backend() == "nccl"
        return self.patient if nccl and not sent.is_cuda else None


ALONE = Processes()
_current, _in_step = ALONE, False


def current() -> Processes:
    """The processes that `start` has found."""
    return _current


@contextmanager
def start(device: torch.device) -> Iterator[Processes]:
    """Context in which the processes of the launcher know each other, if there are several.

    device: that of this process. Where each process has a GPU of its own NCCL sends, otherwise
    gloo. Raises `Lost` with one sentence if a process cannot be reached, or ends.
    """
    global _current
    if not launch.asked_for() or not _current.alone:
        yield _current
        return
    import torch.distributed as distributed

    own_gpu = device.type == "cuda" and launch.number_on_machine() <= torch.cuda.device_count()
    backend = "nccl" if own_gpu and distributed.is_nccl_available() else "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
    meeting = meet()
    try:
        with noticed(meeting):
            distributed.init_process_group(
                backend,
                store=distributed.PrefixStore("group", meeting.store),
                rank=meeting.number,
                world_size=meeting.count,
                timeout=PATIENCE,
            )
            patient = distributed.new_group(backend="gloo", timeout=LONG_PATIENCE)
        _current = Processes(meeting.number, meeting.count, meeting, patient)
        yield _current
    except Exception as error:
        raise meeting.left_behind(error) from None
    finally:
        _current = ALONE
        with contextlib.suppress(RuntimeError, ValueError, AssertionError):  # it is gone already
            distributed.destroy_process_group()


@contextmanager
def in_step() -> Iterator[None]:
    """Context in which all processes compute the same model at the same time, for a gradient.

    What does not depend on the rows of a batch may be split over them there (`splitting`).
    """
    global _in_step
    before, _in_step = _in_step, True
    try:
        yield
    finally:
        _in_step = before


def splitting() -> Processes:
    """The processes that share what is computed now: all within `in_step`, else this one alone."""
    return _current if _in_step else ALONE


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


def _where_sent(tensor: Tensor) -> Tensor:
    """The tensor where it can be sent: on its GPU with NCCL, else on the CPU; truth as numbers."""
    tensor = tensor.to(torch.uint8) if tensor.dtype == torch.bool else tensor
    nccl = torch.distributed.get_backend() == "nccl"
    return tensor if nccl and tensor.is_cuda else tensor.cpu()


def _padded(tensor: Tensor, rows: int) -> Tensor:
    """The tensor with zeros behind, up to so many rows."""
    found = tensor.new_zeros(rows, *tensor.shape[1:])
    found[: len(tensor)] = tensor
    return found


def _largest_share(here: Processes, tensor: Tensor) -> int:
    """The most numbers of the tensor that a process has."""
    return -(-len(tensor) // here.count) * (tensor.numel() // max(1, len(tensor)))


def _put_rows(tensors: Sequence[Tensor], found: Tensor, parts: Sequence[slice]) -> None:
    """Put what a process has sent of each tensor into its rows."""
    begin = 0
    for tensor, part in zip(tensors, parts, strict=True):
        rows = tensor[part]
        rows.copy_(found[begin : begin + rows.numel()].view_as(rows))
        begin += rows.numel()
