"""Bounded reading of files, of lines and of packed files."""

import gzip
import lzma
import os
import threading

import pytest

from bighmm.base import reading
from bighmm.base.reading import read_bytes, read_lines, read_pieces, read_text


@pytest.fixture
def packed(tmp_path):
    return tmp_path / "a.txt.xz"


KINDS = {".xz": ("an xz", lzma.compress), ".gz": ("a gzip", gzip.compress)}


@pytest.mark.parametrize("suffix", KINDS)
def test_packed_files(tmp_path, monkeypatch, suffix):
    packed, pack = tmp_path / f"a.txt{suffix}", KINDS[suffix][1]
    text = b"".join(b"line %d\n" % i for i in range(50_000))
    packed.write_bytes(pack(text))
    assert read_bytes(packed) == text == b"".join(read_lines(packed))
    half = len(text) // 2  # streams one after the other, with padding, cut anywhere
    both = pack(text[:half]) + b"\0" * 8 + pack(text[half:]) + b"\0" * 4
    packed.write_bytes(both)
    for chunk in (1 << 18, 7):
        monkeypatch.setattr(reading, "CHUNK", chunk)
        assert read_bytes(packed) == text


@pytest.mark.parametrize("suffix", KINDS)
@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "text", "after"])
def test_damaged_packed_files(tmp_path, damage, suffix):
    packed, (kind, pack) = tmp_path / f"a.txt{suffix}", KINDS[suffix]
    whole = pack(b"text\n" * 1000)
    middle = len(whole) // 2
    packed.write_bytes(
        {
            "cut": whole[:-5],
            "changed": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
            "empty": b"",
            "text": b"text\n",
            "after": whole + b"rubbish",
        }[damage]
    )
    with pytest.raises(ValueError, match=rf"a\.txt\{suffix} is damaged or is not {kind} file"):
        read_bytes(packed)


@pytest.mark.parametrize("suffix", KINDS)
def test_bombs(tmp_path, monkeypatch, suffix):
    packed = tmp_path / f"a.txt{suffix}"
    packed.write_bytes(KINDS[suffix][1](b"a" * (1 << 25)))
    with pytest.raises(ValueError, match=rf"line 1 of .*a\.txt\{suffix} is longer than"):
        list(read_lines(packed))
    with pytest.raises(ValueError, match="is larger than 1,000 bytes"):
        read_bytes(packed, 1000)
    monkeypatch.setattr(reading, "UNPACKED_ANYWAY", 0)
    with pytest.raises(ValueError, match="unpacks to more than 200 times its size"):
        read_bytes(packed)


@pytest.mark.parametrize("suffix", KINDS)
def test_a_bomb_is_refused_as_soon_as_it_swells(tmp_path, suffix):
    """Not after all of it: what was read so far decides, in pieces of a line of any length, too."""
    packed, size = tmp_path / f"a.txt{suffix}", 1 << 24
    packed.write_bytes(KINDS[suffix][1](b"a b " * (size // 4)) * 64)  # 1 GiB, if it were read
    found = 0
    with pytest.raises(ValueError, match="unpacks to more than 200 times its size"):
        for piece in read_pieces(packed):
            found += len(piece)
    assert 0 < found < 6 * size


def test_the_memory_of_unpacking_is_bounded(packed):
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30, "preset": 0}]
    packed.write_bytes(lzma.compress(b"text", filters=filters))
    with pytest.raises(ValueError, match="is damaged"):
        read_bytes(packed)


def test_pipes_only_where_a_user_names_them(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ValueError, match="is not a regular file"):
        read_text(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(b"a\r\nb"))
    writer.start()
    assert read_text(pipe, pipes=True) == "a\nb"
    writer.join()
    link = tmp_path / "link"
    link.symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="is larger than 100 bytes"):
        read_bytes(link, 100, pipes=True)
