"""Folders that are either whole or not there.

A folder is filled under a temporary name, flushed to the disk, and renamed into place. What stood
there before is kept as `NAME.previous`. A reader that finds no `NAME` takes `NAME.previous`, so a
process killed at any moment loses nothing that was saved before.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import save as to_safetensors
from torch import Tensor


def replace_folder(target: Path, fill: Callable[[Path], None], *, keep_previous: bool) -> None:
    """Let `fill` write a new folder, then put it where `target` is.

    If anything fails on the way, a full disk for instance, `target` is as it was.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    previous = _previous(target)
    _remove_leftovers(target)
    try:
        fresh.mkdir()
        fill(fresh)
        _flush(fresh)
    except BaseException as error:
        shutil.rmtree(fresh, ignore_errors=True)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(target)  # writing to a full disk does not say where
        raise
    if target.exists():
        if previous.exists():
            shutil.rmtree(previous)
        target.rename(previous)
    fresh.rename(target)
    _flush_folder(target.parent)
    if not keep_previous and previous.exists():
        shutil.rmtree(previous)


def existing_folder(target: Path) -> Path | None:
    """`target`, or what stood there before it if a replacement was cut short."""
    for folder in (target, _previous(target)):
        if folder.is_dir():
            return folder
    return None


def previous_folder(target: Path) -> Path | None:
    """What stood at `target` before it was last replaced, if it was kept."""
    folder = _previous(target)
    return folder if target.is_dir() and folder.is_dir() else None


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    path.write_bytes(to_safetensors({name: t.contiguous() for name, t in tensors.items()}))


def write_json(path: Path, value: Any) -> None:
    write_whole(path, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def write_whole(path: Path, content: bytes) -> None:
    """A file that is there with all of its content, or as it was before."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        fresh.write_bytes(content)
        fresh.rename(path)
    finally:
        fresh.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """Raises ValueError with one sentence if the file is missing or is not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path.parent} has no {path.name}; it is not complete") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every file in `folder`, by name."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.iterdir())
        if path.is_file()
    }


def check_hashes(folder: Path, expected: dict[str, str]) -> None:
    """Raises ValueError naming the first file that is missing or differs."""
    for name, value in expected.items():
        path = folder / name
        if not path.is_file():
            raise ValueError(f"{folder} has no {name}; it is not complete")
        if hashlib.sha256(path.read_bytes()).hexdigest() != value:
            raise ValueError(f"{path} is damaged: its content is not what was saved")


def _previous(target: Path) -> Path:
    return target.with_name(f"{target.name}.previous")


def _remove_leftovers(target: Path) -> None:
    """Temporary folders of processes that were killed while they wrote."""
    for folder in target.parent.glob(f".{target.name}.*.tmp"):
        shutil.rmtree(folder, ignore_errors=True)


def _flush(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    _flush_folder(folder)


def _flush_folder(folder: Path) -> None:
    if os.name != "posix":
        return  # other systems cannot open a folder
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
