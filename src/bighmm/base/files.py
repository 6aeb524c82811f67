"""Files and folders that are written atomically, and checks of what is read back.

`replace_folder` fills a folder under a temporary name, flushes it to the disk and renames it into
place. The old folder becomes `NAME.previous`, which readers use if `NAME` is missing. So a process
that is killed at any moment loses nothing that was saved before. Processes that replace the same
folder wait for each other.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from bighmm.base.json_files import read_json, sealed
from bighmm.base.locks import locked_name, remove_temporary, temporary_name
from bighmm.base.settings import shown

MOST_REPLACED = 9  # times that a folder is replaced while it is being read
T = TypeVar("T")


def replace_folder(
    target: Path,
    fill: Callable[[Path], None],
    *,
    keep_previous: bool,
    may_replace: Callable[[Path], bool] | None = None,
    unless: Callable[[], bool] = lambda: False,
) -> None:
    """Replace the folder `target` by a new one that `fill` writes.

    fill: called with the path of an empty folder.
    keep_previous: whether the old folder stays as `NAME.previous`.
    may_replace: whether an existing folder that is not empty may be replaced. Give it where users
        choose the name, so that their own files are never lost. It is asked about `target` and
        about `NAME.previous`. Without it both are replaced, whatever they hold.
    unless: whether nothing is to be done after all. It is asked once no other process is replacing
        the folder, so what one has written, another that waited for it need not write again.

    If anything fails before the rename, such as a full disk, `target` is unchanged. If `target` is
    a link, the folder that it points to is replaced, with `may_replace`; without it nobody knows
    what that holds. Raises ValueError if `target` is a file or such a link, or if `may_replace`
    says no.
    """
    if target.is_symlink():
        if may_replace is None:
            raise ValueError(
                f"{target} is a link, and what it points to is not replaced; remove the link"
            )
        target = target.resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    with locked_name(target, wait=True) as sure:
        if sure:
            remove_temporary(target)
        if not unless():
            _replace(target, fill, keep_previous, may_replace)


def _replace(
    target: Path,
    fill: Callable[[Path], None],
    keep_previous: bool,
    may_replace: Callable[[Path], bool] | None,
) -> None:
    """As `replace_folder`, with the lock of `target`."""
    previous = _previous(target)
    for folder in (target, previous):
        _check_replaceable(folder, may_replace)
    fresh = temporary_name(target)
    old = fresh.with_name(f"{fresh.name.removesuffix('.tmp')}.old.tmp")
    try:
        with naming(target):
            fresh.mkdir()
            fill(fresh)
            flush(fresh)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    if target.exists():
        _remove(previous, old)
        target.rename(previous)
    fresh.rename(target)
    _flush_folder(target.parent)
    if not keep_previous:
        _remove(previous, old)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Context in which errors that name no file, such as those of a full disk, name `path`."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def is_earlier_save(
    folder: Path, config: str, others: Collection[str], is_our_config: Callable[[dict], bool]
) -> bool:
    """Whether `folder` is an earlier save and holds nothing else, for `may_replace`.

    It must have the JSON file `config`, whose content passes `is_our_config`, and no other files
    than those named in `others`.
    """
    if not {path.name for path in folder.iterdir()} <= {config, *others}:
        return False
    try:
        settings = read_json(folder / config, finite=False)
    except ValueError:
        return False
    return isinstance(settings, dict) and is_our_config(settings)


def existing_folder(target: Path) -> Path | None:
    """`target`, or `NAME.previous` if a process was killed between the two renames, or None."""
    for folder in (target, _previous(target), target):  # it may have been put in place meanwhile
        if folder.is_dir():
            return folder
    return None


def read_current(find: Callable[[], Path], read: Callable[[Path], T]) -> T:
    """What `read` returns of a folder that another process may be replacing.

    find: the folder as it is now. If reading fails and there is another folder by then, that is
    read instead: files of two folders do not fit each other, and no reader has a lock.
    """
    for _ in range(MOST_REPLACED):
        folder = find()
        before = _identity(folder)
        try:
            return read(folder)
        except (OSError, ValueError):
            if _identity(find()) == before:
                raise
    return read(find())


def previous_folder(target: Path) -> Path | None:
    """The folder that `target` replaced, None if it was not kept."""
    folder = _previous(target)
    return folder if target.is_dir() and folder.is_dir() else None


def model_folder(path: Path) -> Path:
    """The model folder inside the run folder `path`; `path` itself if it is no run."""
    return existing_folder(path / "model") or existing_folder(path) or path


def hub_folder(name: str, **options: Any) -> Path:
    """The local folder of a model on the Hugging Face hub, downloaded if it is not cached.

    options: those of `snapshot_download`.

    Raises ValueError with one sentence if there is no such model. The hub is not asked if the name
    can only be a path: the hub does not allow it as a name, or its parent is a local folder.
    """
    from huggingface_hub import snapshot_download  # a slow import
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
    except Exception as error:  # errors of the hub and of the network have no common class
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"there is no folder {name}, and the hub gives no such model: {reason}"
        ) from None


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically, as UTF-8."""
    write_atomically(path, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def write_sealed(path: Path, value: dict[str, Any]) -> None:
    """As `write_json`, with a seal that `json_files.read_object` checks."""
    write_json(path, sealed(value))


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file and flush it to the disk.

    A process that is killed on the way, or a loss of power, leaves the old content or the new.
    """
    with writing(path) as file:
        file.write(content)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """A file to write to, which appears under its name once it is complete and on the disk.

    Raises ValueError if there is a folder of that name.
    """
    if path.is_dir():
        raise ValueError(f"{path} is a folder, so no file can be written there; remove it")
    fresh = temporary_name(path)
    try:
        with naming(path):
            with fresh.open("wb") as file:
                yield file
            _flush_file(fresh)
        fresh.replace(path)
        _flush_folder(path.parent)
    finally:
        fresh.unlink(missing_ok=True)


def flush(folder: Path) -> None:
    """Write all files of a folder and the folder itself to the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            _flush_file(path)
    _flush_folder(folder)


def hashes(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file in `folder`, by name."""
    return {path.name: sha256_of(path) for path in sorted(folder.iterdir()) if path.is_file()}


def check_hashes(
    folder: Path, expected: Any, required: Collection[str], optional: Collection[str] = ()
) -> None:
    """Raise ValueError if a file of `folder` is missing or its SHA-256 is not the expected one.

    expected: the SHA-256 of files by name, from a file; it must have all the `required` names, and
        no others than the `optional` ones.
    """
    if not isinstance(expected, dict):
        raise ValueError(f"{folder} is damaged: it does not list its files with their hashes")
    for name in required:
        if name not in expected:
            raise ValueError(f"{folder} is damaged: it does not list {name} among its files")
    for name, value in expected.items():
        if name not in required and name not in optional:
            raise ValueError(f"{folder} is damaged: it lists {shown(name)}, which is not its file")
        path = folder / name
        if not path.is_file():
            raise ValueError(f"{folder} has no {name}; it is not complete")
        if sha256_of(path) != value:
            raise ValueError(f"{path} is damaged: its content is not what was saved")


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, as hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_replaceable(folder: Path, may_replace: Callable[[Path], bool] | None) -> None:
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file, so no folder can be written there; choose another")
    if may_replace is None or not folder.exists() or not any(folder.iterdir()):
        return
    if not may_replace(folder):
        raise ValueError(
            f"{folder} holds other files than an earlier save of the same kind, which would be "
            "lost; choose another folder"
        )


def _identity(folder: Path) -> tuple[int, ...] | None:
    """Whether it is still the same folder: another one has another inode or other time stamps."""
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns


def _previous(target: Path) -> Path:
    return target.with_name(f"{target.name}.previous")


def _remove(folder: Path, old: Path) -> None:
    """Remove `folder` by way of the temporary name `old`.

    So a process that is killed on the way never leaves half of a folder under its real name.
    """
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        folder.rename(old)
        shutil.rmtree(old)


def _flush_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _flush_folder(folder: Path) -> None:
    if os.name != "posix":
        return  # only POSIX systems can open a folder
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
