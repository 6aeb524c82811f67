"""Tensors in safetensors files, written and read in pieces.

Files of many gigabytes are neither gathered on the CPU before they are written nor held a second
time while they are read: at most `PIECE` bytes are.
"""

from __future__ import annotations

import contextlib
import json
import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from bighmm.base.reading import read_part

PIECE = 1 << 25  # bytes that are copied at a time; more only if a row of a tensor is longer
DTYPES = {  # by increasing size, as the library orders them; the largest are written first
    torch.bool: "BOOL",
    torch.uint8: "U8",
    torch.int8: "I8",
    torch.int16: "I16",
    torch.uint16: "U16",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int32: "I32",
    torch.uint32: "U32",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.uint64: "U64",
}


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors of any device to a safetensors file; they need not be contiguous."""
    sizes = {dtype: place for place, dtype in enumerate(DTYPES)}
    names = sorted(tensors, key=lambda name: (-sizes[tensors[name].dtype], name))
    header, end = {}, 0
    for name in names:
        tensor = tensors[name]
        begin, end = end, end + tensor.numel() * tensor.element_size()
        kind, shape = DTYPES[tensor.dtype], list(tensor.shape)
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name in names:
            for piece in _pieces(tensors[name].detach()):
                file.write(piece.numpy().data)


class TensorFile(Mapping[str, Tensor]):
    """The tensors of a safetensors file by name, each read when it is asked for.

    The file is mapped into memory anew for each piece, as pages that were read count as memory of
    the process as long as they are mapped. Raises ValueError if the file is missing or damaged.

    shapes: of all tensors, as the file's header has them, which the library compares with its size.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.shapes: dict[str, torch.Size] = {}
        _check_readable(path)
        known = set(DTYPES.values())
        with _damage_in(path), self._open() as file:
            names: list[str] = file.keys()
            for name in names:
                found = file.get_slice(name)
                if found.get_dtype() not in known:
                    raise ValueError(f"{name} is of the unknown type {found.get_dtype()}")
                self.shapes[name] = torch.Size(found.get_shape())

    def __getitem__(self, name: str) -> Tensor:
        return self.read(name, torch.device("cpu"))

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)

    def read(self, name: str, device: torch.device) -> Tensor:
        """A tensor on a device, without a second copy of it on the CPU."""
        shape = self.shapes[name]
        with self._open() as file:
            kinds = {kind: dtype for dtype, kind in DTYPES.items()}
            dtype = kinds[file.get_slice(name).get_dtype()]
        result = torch.empty(shape, dtype=dtype, device=device)
        self.read_into(name, result)
        return result

    def read_into(self, name: str, target: Tensor) -> None:
        """Copy a tensor into one of the same shape; ValueError if it has another."""
        shape = self.shapes[name]
        _check_shape(name, shape, target.shape)
        if not shape:
            with self._open() as file:
                target.copy_(file.get_tensor(name))
            return
        rows = _rows_at_once(target)
        for begin in range(0, len(target), rows):
            with self._open() as file:
                piece = file.get_slice(name)[begin : begin + rows]
                target[begin : begin + rows].copy_(piece)
            del piece  # which keeps the file mapped

    def _open(self) -> Any:
        return safe_open(self.path, framework="pt")


def read_tensor(tensors: Mapping[str, Tensor], name: str, device: torch.device) -> Tensor:
    """A tensor on a device, in memory of its own."""
    if isinstance(tensors, TensorFile):
        return tensors.read(name, device)
    return tensors[name].to(device, copy=True)


def read_tensors(path: Path) -> dict[str, Tensor]:
    """All tensors of a safetensors file; ValueError with one sentence if it cannot be read."""
    _check_readable(path)
    with _damage_in(path):
        return load_file(path)


def load_state(
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    names: Mapping[str, str],
    *,
    log_zeros: bool = False,
) -> None:
    """Copy tensors into the parameters and buffers of a module.

    names: the tensor for each entry of the module's state. log_zeros: as for `check_numbers`.
    Raises ValueError with one sentence if an entry is missing or unknown, has another shape, or
    holds what is no number.
    """
    state = module.state_dict()
    check_state({name: tensor.shape for name, tensor in state.items()}, tensors, names)
    for name, target in state.items():
        if isinstance(tensors, TensorFile):
            tensors.read_into(names[name], target)
        else:
            target.copy_(tensors[names[name]])
        check_numbers(name, target, log_zeros=log_zeros)


def check_numbers(name: str, tensor: Tensor, *, log_zeros: bool = False) -> None:
    """Raises ValueError for NaN and infinity, in one pass without a copy.

    log_zeros: whether -inf, the logarithm of zero, may be there.
    """
    if not tensor.numel() or not tensor.is_floating_point():
        return
    lowest, highest = (float(bound) for bound in tensor.aminmax())  # both are NaN if one number is
    if not highest < math.inf or (lowest == -math.inf and not log_zeros):
        raise ValueError(f"the tensor {name} holds NaN or infinity")


def check_state(
    shapes: Mapping[str, torch.Size], tensors: Mapping[str, Tensor], names: Mapping[str, str]
) -> None:
    """Raises ValueError if tensors are not those of a state with these shapes; reads none."""
    for name in (*shapes, *names):
        if name not in names or name not in shapes:
            what = "is missing" if name in shapes else "is not known"
            raise ValueError(f"the tensor {name} {what}")
    for name, expected in shapes.items():
        source = names[name]
        stored = tensors.shapes if isinstance(tensors, TensorFile) else None
        _check_shape(name, stored[source] if stored else tensors[source].shape, expected)


def _check_readable(path: Path) -> None:
    """Raises ValueError if the file cannot be opened, of which the library gives wrong reasons."""
    read_part(path, 0, 1)


@contextlib.contextmanager
def _damage_in(path: Path) -> Iterator[None]:
    """Context in which whatever is wrong with a file becomes a ValueError that names it."""
    try:
        yield
    except (OSError, OverflowError, SafetensorError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {(str(error).splitlines() or [''])[0]}") from None


def _pieces(tensor: Tensor) -> Iterator[Tensor]:
    """The bytes of a tensor in order, on the CPU."""
    if tensor.is_contiguous():
        tensor = tensor.view(-1)
    for piece in tensor.split(_rows_at_once(tensor)):
        whole = piece.cpu().contiguous()
        # Not a view: a dimension of size 1 may have any stride.
        yield whole.as_strided((whole.numel(),), (1,)).view(torch.uint8)


def _rows_at_once(tensor: Tensor) -> int:
    row = tensor.numel() // max(1, len(tensor)) * tensor.element_size()
    return max(1, PIECE // max(1, row))


def _check_shape(name: str, shape: torch.Size, expected: torch.Size) -> None:
    if shape != expected:
        raise ValueError(f"the tensor {name} is of shape {list(shape)}, not {list(expected)}")
