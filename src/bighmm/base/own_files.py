"""Files inside a folder of ours that are written in place: locks, logs, pieces of longer work.

A folder may come from a stranger, and what has such a name in it may be a link to a file elsewhere.
So these files are opened without following links, and nothing but a regular file of one name is
written to. Files that are written anew need none of this: they get a random name and are renamed.
"""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_own(path: Path, flags: int) -> int:
    """A descriptor of a file, which is made if it is not there.

    flags: those of `os.open`, for reading and writing.

    Raises ValueError if it is a link, has another name elsewhere (a hard link), or is a folder, a
    pipe or a device.
    """
    with contextlib.suppress(FileNotFoundError):
        _check(path, os.lstat(path))
    flags |= os.O_CREAT
    for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):  # not on every system
        flags |= getattr(os, name, 0)
    descriptor = os.open(path, flags, 0o666)
    try:
        _check(path, os.fstat(descriptor))  # it may have become another one meanwhile
    except ValueError:
        os.close(descriptor)
        raise
    return descriptor


def append_to(path: Path) -> BinaryIO:
    """A file that is appended to, and may be cut."""
    return os.fdopen(open_own(path, os.O_WRONLY | os.O_APPEND), "ab")


def _check(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = "a link" if stat.S_ISLNK(found.st_mode) else "not a regular file"
        raise ValueError(f"{path} is {kind}, so nothing is written to it; remove it")
    if found.st_nlink > 1:
        raise ValueError(
            f"{path} has another name elsewhere (a hard link), so nothing is written to it; put a "
            "copy in its place"
        )
