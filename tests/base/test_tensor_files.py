"""Tensors are written and read in pieces, in files that the safetensors library knows."""

import json
import struct
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from bighmm.base import tensor_files
from bighmm.base.tensor_files import (
    TensorFile,
    check_state,
    load_state,
    read_tensor,
    read_tensors,
    write_tensors,
)

CPU = torch.device("cpu")


def some_tensors():
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(13, 5, generator=generator)
    return {
        "table": table,
        "half": table.bfloat16(),
        "double": table.double() * 1e-300,
        "count": torch.arange(7, dtype=torch.int32),
        "flags": table[0] > 0,
        "number": torch.tensor(3.5),
        "none": torch.zeros(0, 4),
        "empty rows": torch.zeros(4, 0),
        "größe": torch.arange(3),
        "wide": torch.arange(60).view(3, 20),
    }


@pytest.fixture(params=[1 << 25, 64, 1], ids=["at once", "pieces", "tiny pieces"])
def piece(request, monkeypatch):
    monkeypatch.setattr(tensor_files, "PIECE", request.param)
    return request.param


def same(found, expected):
    return (
        found.keys() == expected.keys()
        and all(torch.equal(found[name], tensor) for name, tensor in expected.items())
        and all(found[name].dtype == tensor.dtype for name, tensor in expected.items())
    )


def test_the_file_is_what_the_library_writes(tmp_path, piece):
    write_tensors(tmp_path / "t", some_tensors())
    assert (tmp_path / "t").read_bytes() == save(some_tensors())
    assert same(load_file(tmp_path / "t"), some_tensors())


@pytest.mark.parametrize("dtype", list(tensor_files.DTYPES), ids=str)
def test_every_type(tmp_path, dtype):
    tensors = {"x": torch.tensor([0, 1, 1]).to(dtype)}
    write_tensors(tmp_path / "t", tensors)
    assert same(load_file(tmp_path / "t"), tensors) and same(TensorFile(tmp_path / "t"), tensors)


def test_files_of_the_library_are_read(tmp_path, piece):
    (tmp_path / "t").write_bytes(save(some_tensors()))
    found = TensorFile(tmp_path / "t")
    assert len(found) == len(some_tensors()) and same(found, some_tensors())
    with pytest.raises(KeyError):
        found["other"]


def test_tensors_need_not_be_contiguous(tmp_path, piece):
    table = torch.arange(6.0).view(2, 3)
    tensors = {
        "turned": table.T,
        "part": table[:, 1],
        "one": table[:1, 1],
        "learnt": nn.Parameter(table),
    }
    write_tensors(tmp_path / "t", tensors)
    assert same(load_file(tmp_path / "t"), tensors)


def test_no_more_than_a_piece_is_copied(tmp_path, monkeypatch):
    """From the device when writing, and from the file when reading."""
    monkeypatch.setattr(tensor_files, "PIECE", 64)
    copied = []

    def counting(method, which):
        def count(self, *args, **options):
            source = (self, *args)[which]
            copied.append(source.numel() * source.element_size())
            return method(self, *args, **options)

        return count

    table = torch.randn(100, 3)
    tensors = {"a": table, "b": torch.randn(2, 50).T}
    total = 2 * 300 * 4 - 200 * 4
    with monkeypatch.context() as patch:
        patch.setattr(Tensor, "cpu", counting(Tensor.cpu, 0))
        write_tensors(tmp_path / "t", tensors)
    assert max(copied) <= 64 and sum(copied) == total and len(copied) >= total / 64
    copied.clear()
    file, target = TensorFile(tmp_path / "t"), torch.zeros(100, 3)
    with monkeypatch.context() as patch:
        patch.setattr(Tensor, "copy_", counting(Tensor.copy_, 1))
        file.read_into("a", target)
        assert torch.equal(read_tensor(file, "b", CPU), tensors["b"])
    assert torch.equal(target, table)
    assert max(copied) <= 64 and sum(copied) == total


def test_a_module_is_filled(tmp_path, piece):
    torch.manual_seed(0)
    one, other = nn.Linear(5, 4), nn.Linear(5, 4)
    state = {f"own.{name}": tensor for name, tensor in one.state_dict().items()}
    write_tensors(tmp_path / "t", state)
    names = {name: f"own.{name}" for name in one.state_dict()}
    places = [p.data_ptr() for p in other.parameters()]
    for tensors in (TensorFile(tmp_path / "t"), state):
        nn.init.zeros_(other.weight)
        load_state(other, tensors, names)
        assert same(other.state_dict(), one.state_dict())
    assert [p.data_ptr() for p in other.parameters()] == places
    assert all(p.requires_grad for p in other.parameters())


def test_a_module_that_does_not_fit(tmp_path):
    state = {"weight": torch.zeros(4, 5), "bias": torch.zeros(1)}
    write_tensors(tmp_path / "t", state)
    for tensors in (TensorFile(tmp_path / "t"), state):
        with pytest.raises(ValueError, match=r"tensor bias is of shape \[1\], not \[4\]"):
            load_state(nn.Linear(5, 4), tensors, {name: name for name in state})
        with pytest.raises(ValueError, match="tensor weight is missing"):
            load_state(nn.Linear(5, 4), tensors, {"bias": "bias"})
        with pytest.raises(ValueError, match="tensor bias is not known"):
            load_state(nn.Linear(5, 4, bias=False), tensors, {name: name for name in state})


def test_numbers_that_are_none(tmp_path):
    for value in (torch.nan, torch.inf, -torch.inf):
        state = {"weight": torch.zeros(4, 5), "bias": torch.tensor([0, 0, value, 0])}
        write_tensors(tmp_path / "t", state)
        names = {name: name for name in state}
        for tensors in (TensorFile(tmp_path / "t"), state):
            with pytest.raises(ValueError, match="the tensor bias holds NaN or infinity"):
                load_state(nn.Linear(5, 4), tensors, names)
            if value == -torch.inf:  # a probability of zero, in tables of logarithms
                load_state(nn.Linear(5, 4), tensors, names, log_zeros=True)


@pytest.mark.parametrize("content", [None, b"", b"\x10", b"\xff" * 100])
def test_missing_or_damaged(tmp_path, content):
    if content is not None:
        (tmp_path / "t").write_bytes(content)
    for read in (TensorFile, read_tensors):
        with pytest.raises(ValueError, match=r"/t (is damaged|cannot be read): "):
            read(tmp_path / "t")


def test_a_file_that_may_not_be_read(tmp_path):
    write_tensors(tmp_path / "t", some_tensors())
    (tmp_path / "t").chmod(0)
    tmp_path.chmod(0o755)
    code = (
        "import os, sys\nfrom pathlib import Path\n"
        "from bighmm.base.tensor_files import TensorFile, read_tensors\n"
        "if os.geteuid() == 0: os.setresuid(65534, 65534, 65534)  # root may read anything\n"
        "for read in (TensorFile, read_tensors):\n"
        "    try: read(Path('t'))\n"
        "    except ValueError as error: print(error)\n"
    )
    python = [sys.executable, "-c", code]
    done = subprocess.run(python, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.splitlines() == ["t cannot be read: Permission denied"] * 2


def test_devices_unknown_types_and_sizes_that_are_none(tmp_path):
    (tmp_path / "zero").symlink_to("/dev/zero")
    for read in (TensorFile, read_tensors):
        with pytest.raises(ValueError, match="zero cannot be read: it is not a regular file"):
            read(tmp_path / "zero")
    for kind, shape, message in (("F8_E4M3", [2], "unknown type"), ("F32", [10**12], "/t is")):
        entry = {"dtype": kind, "shape": shape, "data_offsets": [0, 2]}
        header = json.dumps({"a": entry}).encode()
        (tmp_path / "t").write_bytes(struct.pack("<Q", len(header)) + header + b"12")
        with pytest.raises(ValueError, match=message):
            TensorFile(tmp_path / "t")


def test_shapes_are_compared_without_reading(tmp_path):
    write_tensors(tmp_path / "t", {"a": torch.zeros(2, 3)})
    tensors = TensorFile(tmp_path / "t")
    (tmp_path / "t").unlink()
    check_state({"a": torch.Size([2, 3])}, tensors, {"a": "a"})
    with pytest.raises(ValueError, match=r"tensor a is of shape \[2, 3\], not \[1000000000\]"):
        check_state({"a": torch.Size([10**9])}, tensors, {"a": "a"})
