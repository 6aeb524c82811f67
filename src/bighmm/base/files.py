"""Folders that are either whole or not there.

A folder is filled under a temporary name, flushed to the disk, and renamed into place. What stood
there before is kept as `NAME.previous`. A reader that finds no `NAME` takes `NAME.previous`, so a
process killed at any moment loses nothing that was saved before. Where people choose the name,
only what was saved there before is replaced, never files of their own.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


def replace_folder(
    target: Path,
    fill: Callable[[Path], None],
    *,
    keep_previous: bool,
    earlier: Callable[[Path], bool] | None = None,
) -> None:
    """Let `fill` write a new folder, then put it where `target` is.

    earlier: whether a folder is an earlier save and holds nothing else. Any other that is not empty
        is refused with ValueError, and so is another `NAME.previous`. Without it the name is one
        that belongs to this library, in a run for instance, and whatever stands there is replaced.

    If anything fails on the way, a full disk for instance, `target` is as it was. Raises ValueError
    if it is a file.
    """
    if target.is_symlink():
        target = target.resolve()  # what the link leads to is replaced, not the link
    previous = _previous(target)
    for place in (target, previous):
        _check_replaceable(place, earlier)
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh, old = (
        target.with_name(f".{target.name}.{os.getpid()}{part}.tmp") for part in ("", ".old")
    )
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
        _remove(previous, old)
        target.rename(previous)
    fresh.rename(target)
    _flush_folder(target.parent)
    if not keep_previous:
        _remove(previous, old)


def is_earlier_save(
    folder: Path, config: str, others: Collection[str], of_this_kind: Callable[[dict], bool]
) -> bool:
    """Whether a folder has the file `config`, of this kind, and no files but it and `others`."""
    if not {path.name for path in folder.iterdir()} <= {config, *others}:
        return False
    try:
        found = read_json(folder / config)
    except ValueError:
        return False
    return isinstance(found, dict) and of_this_kind(found)


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


def model_folder(path: Path) -> Path:
    """The folder of a model, given it or the run that trained it."""
    return existing_folder(path / "model") or path


def hub_folder(name: str, **options: Any) -> Path:
    """The folder of a model on the Hugging Face hub, downloaded if it is not here yet.

    options: those of `snapshot_download`.

    Raises ValueError with one sentence if there is none, and without asking the hub if the name can
    only be a path: it is none that the hub allows, or its parent is a folder here.
    """
    from huggingface_hub import snapshot_download  # here: its import takes long
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    path = Path(name)
    try:
        validate_repo_id(name)
    except HFValidationError:
        raise ValueError(f"there is no folder {name}") from None
    if path.exists() or (len(path.parts) > 1 and path.parent.is_dir()):
        raise ValueError(f"there is no folder {name}")
    try:
        return Path(snapshot_download(name, **options))
    except Exception as error:  # the hub's errors and those of the network have no common kind
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"there is no folder {name}, and the hub gives no such model: {reason}"
        ) from None


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write tensors as one safetensors file."""
    from safetensors.torch import save as to_safetensors

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
    return {path.name: _hash(path) for path in sorted(folder.iterdir()) if path.is_file()}


def check_hashes(folder: Path, expected: dict[str, str]) -> None:
    """Raises ValueError naming the first file that is missing or differs."""
    for name, value in expected.items():
        path = folder / name
        if not path.is_file():
            raise ValueError(f"{folder} has no {name}; it is not complete")
        if _hash(path) != value:
            raise ValueError(f"{path} is damaged: its content is not what was saved")


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_replaceable(place: Path, earlier: Callable[[Path], bool] | None) -> None:
    if place.exists() and not place.is_dir():
        raise ValueError(f"{place} is a file, so no folder can be written there; choose another")
    if earlier is None or not place.exists() or not any(place.iterdir()):
        return
    if not earlier(place):
        raise ValueError(
            f"{place} holds other files than an earlier save of the same kind, which would be "
            "lost; choose another folder"
        )


def _previous(target: Path) -> Path:
    return target.with_name(f"{target.name}.previous")


def _remove(folder: Path, old: Path) -> None:
    """A removal that is cut short leaves nothing at `folder`, but a leftover at `old`."""
    if folder.exists():
        folder.rename(old)
        shutil.rmtree(old)


def _remove_leftovers(target: Path) -> None:
    """Temporary folders of processes that were killed while they wrote."""
    name = re.compile(rf"\.{re.escape(target.name)}\.\d+(\.old)?\.tmp")
    for folder in target.parent.iterdir():
        if name.fullmatch(folder.name):
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
