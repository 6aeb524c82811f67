"""Files that are read with a limit, so that no file can fill the memory or keep a process waiting.

A file that belongs to a folder must be a regular one: a device or a pipe may never end. What a user
names may be a pipe too, such as `<(command)` of a shell. Every error is a ValueError of one
sentence that names the file.
"""

from __future__ import annotations

import io
import lzma
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

MOST = 1 << 27  # bytes of a file that is read at once
MOST_LINE = 1 << 24  # bytes of a line of text
MOST_UNPACKED = 1000  # how many times larger than itself an .xz file may become
UNPACKED_ANYWAY = 1 << 24  # bytes that it may become however small it is
UNPACKING = 1 << 28  # bytes of memory that unpacking may take; `xz -9` asks for 65 MiB
CHUNK = 1 << 18


def read_bytes(path: Path, most: int = MOST, *, pipes: bool = False) -> bytes:
    """The content of a file of at most so many bytes, unpacked if its name ends in .xz.

    pipes: whether it may be a pipe or a device as well.
    """
    with _open(path, pipes) as file:
        content = _read(file, most + 1)
    if len(content) > most:
        raise ValueError(f"{path} is larger than {most:,} bytes, the most that is read of it")
    return content


def read_text(path: Path, most: int = MOST, *, pipes: bool = False) -> str:
    """The content of a UTF-8 file, as `read_bytes` reads it; line ends become newlines."""
    try:
        text = read_bytes(path, most, pipes=pipes).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: byte {error.start} does not belong") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def read_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file with their ends, one after the other, unpacked if it is an .xz file."""
    with _open(path) as file:
        number = 1
        while line := file.readline(MOST_LINE + 1):
            if len(line) > MOST_LINE:
                raise ValueError(
                    f"line {number} of {path} is longer than {MOST_LINE:,} bytes; cut it into lines"
                )
            yield line
            number += 1


def check_regular(path: Path) -> None:
    """Raises ValueError if there is no such file, or it is a folder, a device or a pipe."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(mode):
        raise ValueError(f"{path} cannot be read: it is not a regular file")


def _open(path: Path, pipes: bool = False) -> BinaryIO:
    if not pipes or path.is_dir():
        check_regular(path)
    try:
        if path.suffix == ".xz":
            return io.BufferedReader(_Unpacked(path), CHUNK)
        return path.open("rb")
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None


def _read(file: BinaryIO, most: int) -> bytes:
    """At most so many bytes; a pipe may give them in parts."""
    parts, missing = [], most
    while missing and (part := file.read(min(missing, 1 << 20))):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


class _Unpacked(io.RawIOBase):
    """The content of an .xz file; ValueError if it is damaged or grows out of all proportion."""

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, path.open("rb")
        self._decoder = _decoder()
        self._left = path.stat().st_size * MOST_UNPACKED + UNPACKED_ANYWAY
        self._begun, self._ended = False, 0  # within a stream; streams before it

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, target: Any) -> int:
        part = self._next(len(target))
        self._left -= len(part)
        if self._left < 0:
            raise ValueError(
                f"{self._path} unpacks to more than {MOST_UNPACKED} times its size, which text "
                "does not; unpack it first if it is right"
            )
        target[: len(part)] = part
        return len(part)

    def _next(self, most: int) -> bytes:
        """The next bytes; none at the end. Streams may follow each other, with zeros between."""
        while True:
            packed = b""
            if self._decoder.eof:
                packed, self._decoder = self._decoder.unused_data, _decoder()
                self._begun, self._ended = False, self._ended + 1
            if not packed and self._decoder.needs_input:
                packed = self._file.read(CHUNK)
                if not packed and (self._begun or not self._ended):
                    raise self._damaged()
                if not packed:
                    return b""
            if not self._begun and not (packed := packed.lstrip(b"\0")):
                continue
            self._begun = True
            try:
                part = self._decoder.decompress(packed, most)
            except (lzma.LZMAError, EOFError):
                raise self._damaged() from None
            if part:
                return part

    def _damaged(self) -> ValueError:
        return ValueError(f"{self._path} is damaged or is not an xz file")


def _decoder() -> lzma.LZMADecompressor:
    return lzma.LZMADecompressor(memlimit=UNPACKING)
