"""Files that are read with a limit, so that no file can fill the memory or keep a process waiting.

A file that belongs to a folder must be a regular one: a device or a pipe may never end. What a user
names may be a pipe too, such as `<(command)` of a shell. Every error is a ValueError of one
sentence that names the file.
"""

from __future__ import annotations

import io
import lzma
import stat
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Protocol

MOST = 1 << 27  # bytes of a file that is read at once
MOST_LINE = 1 << 24  # bytes of a line of text
PIECE = 1 << 20  # bytes of a piece of a line of any length
MOST_UNPACKED = 200  # how many times larger a packed file may become; text is seldom 20 times
UNPACKED_ANYWAY = 1 << 24  # bytes that it may become however small it is
UNPACKING = 1 << 28  # bytes of memory that unpacking may take; `xz -9` asks for 65 MiB
CHUNK = 1 << 18


def read_bytes(path: Path, most: int = MOST, *, pipes: bool = False) -> bytes:
    """The content of a file of at most so many bytes, unpacked if its name ends in .xz or .gz.

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
    """The lines of a file with their ends, one after the other; .xz and .gz are unpacked."""
    with _open(path) as file:
        number = 1
        while line := file.readline(MOST_LINE + 1):
            if len(line) > MOST_LINE:
                raise ValueError(
                    f"line {number} of {path} is longer than {MOST_LINE:,} bytes; cut it into lines"
                )
            yield line
            number += 1


def read_pieces(path: Path) -> Iterator[bytes]:
    """As `read_lines`, with lines of any length: long ones are cut where there is a space."""
    rest = b""
    with _open(path) as file:
        while part := file.readline(PIECE):
            part, rest = rest + part, b""
            if not part.endswith(b"\n") and len(part) >= PIECE:
                place = part.rfind(b" ")
                if place <= 0:
                    place = len(part) - 1
                    while place > 1 and part[place] & 0xC0 == 0x80:  # within a UTF-8 character
                        place -= 1
                part, rest = part[:place], part[place:]
            yield part
    if rest:
        yield rest


def read_part(path: Path, first: int, most: int) -> bytes:
    """At most `most` bytes of a regular file from its byte `first` on."""
    check_regular(path)
    try:
        with path.open("rb") as file:
            file.seek(first)
            return _read(file, most)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None


def unpacked_name(name: str) -> str:
    """The name of a file without .xz or .gz."""
    return name.removesuffix(".xz").removesuffix(".gz")


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
        if path.suffix in _DECODERS:
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
    """The content of a packed file; ValueError if it is damaged or grows out of all proportion."""

    def __init__(self, path: Path) -> None:
        self._path, self._file = path, path.open("rb")
        self._kind, self._fresh_decoder = _DECODERS[path.suffix]
        self._decoder = self._fresh_decoder()
        self._given = 0  # bytes so far
        self._begun, self._ended = False, 0  # within a stream; streams before it

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._file.close()
        super().close()

    def readinto(self, target: Any) -> int:
        part = self._next(len(target))
        self._given += len(part)
        if self._given > self._file.tell() * MOST_UNPACKED + UNPACKED_ANYWAY:
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
                packed, self._decoder = self._decoder.unused_data, self._fresh_decoder()
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
            except (lzma.LZMAError, zlib.error, EOFError):
                raise self._damaged() from None
            if part:
                return part

    def _damaged(self) -> ValueError:
        return ValueError(f"{self._path} is damaged or is not {self._kind} file")


class _Decoder(Protocol):
    """One stream of a packed file, as the decoders of `lzma` and `bz2` are."""

    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    @property
    def needs_input(self) -> bool: ...

    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _GzipDecoder:
    """The decoder of `zlib` for gzip files, with the methods of the others."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        part = self._inner.decompress(self._inner.unconsumed_tail + data, max_length)
        self.needs_input = len(part) < max_length  # otherwise it may have more to give
        return part


_DECODERS: dict[str, tuple[str, Callable[[], _Decoder]]] = {
    ".xz": ("an xz", lambda: lzma.LZMADecompressor(memlimit=UNPACKING)),
    ".gz": ("a gzip", _GzipDecoder),
}
