"""Locks, so that two processes never write the same thing at the same time.

A lock is the operating system's lock on an open file. The system gives it up when its holder ends,
however that happens, so a killed process leaves no lock behind. The file says who holds it. It is
removed with the lock; one that a killed process left is not locked and is used again.

What is being written has a temporary name (`temporary_name`) until it is complete. Who holds the
lock of a folder, or of the name that a folder is to get, knows that temporary names in it, or of
that name, were left by processes that are dead.

Some network file systems have no locks. Work goes on there with a warning, and nothing is removed
that another process might still be writing.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import platform
import re
import secrets
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path

from bighmm.base.own_files import open_own

LOCK = ".bighmm-lock"  # in a folder that is locked; no other program has such files
TEMPORARY = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{16}(\.old)?\.tmp")
LEFTOVER = re.compile(rf"{TEMPORARY.pattern}|\.(?P<locked>.+){re.escape(LOCK)}")
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL}


class Busy(ValueError):
    """Another process, or another thread of this one, holds a lock."""


def _warn(sentence: str) -> None:
    warnings.warn(sentence, stacklevel=2)


@contextlib.contextmanager
def locked_folder(
    folder: Path, *, wait: bool = False, say: Callable[[str], None] = _warn
) -> Iterator[None]:
    """Context in which no other process writes in a folder, which is made if it is not there.

    What killed processes left in it under temporary names is removed. A folder that was made here
    and is empty at the end is removed.

    wait: wait for the process that holds the lock, instead of raising `Busy`.
    say: called with a sentence where the file system has no locks.
    """
    with lock_file(folder / LOCK, folder, wait=wait) as sure:
        if sure:
            remove_temporary_files(folder)
            remove_leftovers(folder)
        else:
            say(
                f"the file system of {folder} has no locks, so nothing keeps a second process from "
                "writing there at the same time"
            )
        yield


def locked_name(target: Path, *, wait: bool = False) -> contextlib.AbstractContextManager[bool]:
    """Context in which no other process makes or replaces the folder `target`.

    Its lock is a file beside `target`. The value is as that of `lock_file`.
    """
    return lock_file(target.with_name(f".{target.name}{LOCK}"), target, wait=wait)


@contextlib.contextmanager
def lock_file(path: Path, what: Path, *, wait: bool = False) -> Iterator[bool]:
    """Context that holds the lock `path`. The value is False where the file system has no locks.

    what: the thing that is locked, for the message of `Busy`.
    wait: wait for the holder, instead of raising `Busy`.
    """
    made: list[Path] = []
    lock = _acquire(path, what, wait, made)
    try:
        yield lock.sure
    finally:
        _release(lock)
        for folder in reversed(made):
            with contextlib.suppress(OSError):  # it is not empty
                folder.rmdir()


def check_free(folder: Path) -> None:
    """Raise `Busy` if a process holds the lock of a folder."""
    if (folder / LOCK).is_file():
        with lock_file(folder / LOCK, folder):
            pass


def is_unused(folder: Path) -> bool:
    """Whether a folder is missing, or has only what is left of a process that was killed early."""
    if not folder.exists():
        return True
    names = [path.name for path in folder.iterdir()] if folder.is_dir() else [folder.name]
    return all(name == LOCK or LEFTOVER.fullmatch(name) for name in names)


def temporary_name(path: Path) -> Path:
    """A name beside `path` that no other process or thread uses."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")


def remove_leftovers(home: Path) -> None:
    """Remove temporary folders and locks in `home` that killed processes left.

    Those of a name that somebody has locked stay.
    """
    found = (LEFTOVER.fullmatch(path.name) for path in home.iterdir())
    for name in {match["name"] or match["locked"] for match in found if match}:
        with contextlib.suppress(Busy), locked_name(home / name) as sure:  # removes its file
            if sure:
                remove_temporary(home / name)


def remove_temporary_files(folder: Path) -> None:
    """Remove temporary files in a folder in which nobody else writes."""
    for path in folder.iterdir():
        if TEMPORARY.fullmatch(path.name) and path.is_file():
            path.unlink(missing_ok=True)


def remove_temporary(target: Path) -> None:
    """Remove temporary folders that were to become `target`, whose lock the caller holds."""
    # The first version had numbers of processes in these names.
    name = re.compile(rf"\.{re.escape(target.name)}\.([0-9a-f]{{16}}|\d+)(\.old)?\.tmp")
    for path in target.parent.iterdir():
        if name.fullmatch(path.name) and path.is_dir():
            shutil.rmtree(path, ignore_errors=True)


class _Lock:
    def __init__(self, path: Path) -> None:
        self.path, self.sure = path, True
        self.descriptor = _open(path)


_held: set[_Lock] = set()


def _close_inherited() -> None:
    """In a forked process: forget the locks, which stay with the process that took them.

    The descriptors are closed, since a lock lasts as long as any process has it open.
    """
    for lock in _held:
        os.close(lock.descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_inherited)


def _acquire(path: Path, what: Path, wait: bool, made: list[Path]) -> _Lock:
    """The lock; folders that had to be made are added to `made`."""
    while True:
        _make_folder(path.parent, made)
        try:
            lock = _Lock(path)
        except FileNotFoundError:  # whoever made the folder has removed it
            continue
        _held.add(lock)
        try:
            lock.sure = _lock(lock.descriptor, wait)
            if not lock.sure or _is_open_file(lock.descriptor, path):
                _write_holder(lock.descriptor)
                return lock
            _close(lock)  # it was removed by its last holder
        except BlockingIOError:
            _close(lock)
            raise Busy(
                f"{what} is being written by another process{_holder(path)}; wait for it, or "
                "choose another folder"
            ) from None
        except BaseException:
            _close(lock)
            raise


def _release(lock: _Lock) -> None:
    if lock not in _held:  # in a forked process
        return
    with contextlib.suppress(OSError):  # it does no harm if it stays
        if os.name == "posix":  # while it is locked, so that nobody else has locked it since
            lock.path.unlink(missing_ok=True)
    _close(lock)
    with contextlib.suppress(OSError):
        if os.name != "posix":  # where open files cannot be removed, neither ours nor another's
            lock.path.unlink(missing_ok=True)


def _close(lock: _Lock) -> None:
    if lock in _held:
        _held.discard(lock)
        os.close(lock.descriptor)


def _make_folder(folder: Path, made: list[Path]) -> None:
    missing = []
    for place in (folder, *folder.parents):
        if place.exists():
            break
        missing.append(place)
    for place in reversed(missing):
        with contextlib.suppress(FileNotFoundError):  # somebody removes one above; we come again
            place.mkdir(exist_ok=True)
            made.append(place)


def _open(path: Path) -> int:
    try:
        return open_own(path, os.O_RDWR)
    except PermissionError:
        if not path.exists():
            raise
        return os.open(
            path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)
        )  # left by another user; it can be locked all the same


def _is_open_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False


def _write_holder(descriptor: int) -> None:
    since = datetime.now().astimezone().isoformat(sep=" ", timespec="seconds")
    holder = {"pid": os.getpid(), "host": platform.node(), "since": since}
    with contextlib.suppress(OSError):  # it only informs
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps(holder).encode())


def _holder(path: Path) -> str:
    """Who holds a lock, in brackets; empty if that is not known."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(1000))
        return f" (pid {found['pid']} on {found['host']}, since {found['since']})"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""


if sys.platform == "win32":
    import msvcrt

    FAR = 1 << 30  # a byte that is not there, since what is locked cannot be read

    def _lock(descriptor: int, wait: bool) -> bool:
        """Lock an open file; BlockingIOError if it is locked. False if there are no locks."""
        while True:
            os.lseek(descriptor, FAR, os.SEEK_SET)
            try:
                msvcrt.locking(descriptor, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
                os.lseek(descriptor, 0, os.SEEK_SET)
                return True
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EDEADLK):
                    return False
                if not wait:
                    raise BlockingIOError from None

else:
    import fcntl

    def _lock(descriptor: int, wait: bool) -> bool:
        """Lock an open file; BlockingIOError if it is locked. False if there are no locks."""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            return True
        except BlockingIOError:
            raise
        except OSError as error:
            if error.errno in NO_LOCKS:
                return False
            raise
