"""Files of whole numbers that are checked once per process, while they are read in pieces.

A file that was checked is known again by its place, size and time stamps, so that opening a corpus
twice reads it once. One that was changed moments ago is checked every time: a second change might
have the same time stamp.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import numpy as np

from bighmm.base.reading import check_regular

PIECE = 1 << 24  # bytes
SETTLED = 2.0  # seconds after which a further change has another time stamp on any file system
_checked: set[tuple] = set()


def open_numbers(
    path: Path,
    dtype: str,
    count: int,
    *,
    below: int,
    sha256: str | None,
    again: bool = False,
) -> np.ndarray:
    """The numbers (count,) of a file, memory-mapped; all are from 0 to below - 1.

    dtype: a type of whole numbers.
    sha256: of the content; None if it is not known.
    again: whether it is checked even if this process has checked it before.

    Raises ValueError if the file is missing or has another size or content.
    """
    check_regular(path)
    found, size = path.stat(), count * np.dtype(dtype).itemsize
    if found.st_size != size:
        raise ValueError(
            f"{path} is damaged: it has {found.st_size} bytes and should have {size} bytes"
        )
    stamp = (found.st_dev, found.st_ino, size, found.st_mtime_ns, found.st_ctime_ns)
    key = (os.path.realpath(path), stamp, dtype, below, sha256)
    if again or key not in _checked:
        _check(path, dtype, below, sha256)
        if time.time() - max(found.st_mtime, found.st_ctime) > SETTLED:
            _checked.add(key)
    if count == 0:
        return np.empty(0, dtype)  # an empty file cannot be mapped
    return np.memmap(path, dtype=dtype, mode="r")


def _check(path: Path, dtype: str, below: int, sha256: str | None) -> None:
    """Raises ValueError for a number outside the range, or another SHA-256."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
            numbers = np.frombuffer(piece, dtype)
            least, most = int(numbers.min()), int(numbers.max())
            if least < 0 or most >= below:
                wrong = most if most >= below else least
                raise ValueError(
                    f"{path} is damaged: it has the number {wrong}, and they are 0 to {below - 1}"
                )
    if sha256 is not None and digest.hexdigest() != sha256:
        raise ValueError(f"{path} is damaged: its sha256 is not the manifest's")
