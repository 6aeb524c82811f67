"""Bounded reading of files, of lines and of packed files."""

import lzma
import os
import threading

import pytest

from bighmm.base import reading
from bighmm.base.reading import read_bytes, read_lines, read_text


@pytest.fixture
def packed(tmp_path):
    return tmp_path / "a.txt.xz"


def test_packed_files(packed, monkeypatch):
    text = b"".join(b"line %d\n" % i for i in range(50_000))
    packed.write_bytes(lzma.compress(text))
    assert read_bytes(packed) == text == b"".join(read_lines(packed))
    half = len(text) // 2  # streams one after the other, with padding, cut anywhere
    both = lzma.compress(text[:half]) + b"\0" * 8 + lzma.compress(text[half:]) + b"\0" * 4
    packed.write_bytes(both)
    for chunk in (1 << 18, 7):
        monkeypatch.setattr(reading, "CHUNK", chunk)
        assert read_bytes(packed) == text


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "text", "after"])
def test_damaged_packed_files(packed, damage):
    whole = lzma.compress(b"text\n" * 1000)
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
    with pytest.raises(ValueError, match=r"a\.txt\.xz is damaged or is not an xz file"):
        read_bytes(packed)


def test_bombs(packed, monkeypatch):
    packed.write_bytes(lzma.compress(b"a" * (1 << 25)))
    with pytest.raises(ValueError, match=r"line 1 of .*a\.txt\.xz is longer than"):
        list(read_lines(packed))
    with pytest.raises(ValueError, match="is larger than 1,000 bytes"):
        read_bytes(packed, 1000)
    monkeypatch.setattr(reading, "UNPACKED_ANYWAY", 0)
    with pytest.raises(ValueError, match="unpacks to more than 1000 times its size"):
        read_bytes(packed)


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
