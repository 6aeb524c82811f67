"""Damage to the files of a folder: bytes, links, JSON, safetensors, lines of text.

Every function changes a file and says in a few words what it did. What it does is a function of
the random numbers it is given.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import random
import re
import shutil
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Random = random.Random
Mutation = Callable[[Random, Path], str]

NESTED = 100_000  # lists within each other
SEAL = "seal"  # the field in which a JSON file has the hash of its other fields
RAW = "@raw-json@"  # stands for text that no value is written as
NUMBERS = (
    *(-1, 0, 1, 2, 3, 7, 255, 256, 65535, 65536, 10**6, 10**9, 2**31, 2**63, 2**64, -(2**63)),
    *(10**30, 0.5, -0.0, 1e-320, 1e308, True, False, None),
)
STRINGS = ("", " ", "x", "blncked", "\x00", "../../etc/passwd", "/", "é\u0301🦜", "\ud800", "%s{0}")
RAW_VALUES = (
    *("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 5000, "0." + "1" * 3000),
    *("[" * NESTED + "]" * NESTED, '{"a":' * NESTED + "1" + "}" * NESTED, "", "[1,]", "nul"),
)


def mutate(draw: Random, file: Path, others: list[Path], pipes: bool = True) -> str:
    """Damage a file in a way that fits its content.

    others: files to swap it with. pipes: whether a named pipe may take its place.
    """
    kinds: list[Callable[[], str]] = [
        lambda: draw.choice(BYTES)(draw, file),
        lambda: draw.choice(BYTES)(draw, file),
        lambda: draw.choice(PLACES if pipes else PLACES[:-1])(draw, file),
        lambda: swap(draw, file, others),
    ]
    content = file.read_bytes()
    if file.suffix == ".safetensors":
        kinds += [lambda: tensors(draw, file)] * 8
    elif _is_json(content):
        kinds += [lambda: fields(draw, file)] * 8
    elif file.suffix == ".bin":
        kinds += [lambda: numbers(draw, file)] * 6
    elif _is_text(content):
        kinds += [lambda: lines(draw, file)] * 8
    return f"{file.name}: {draw.choice(kinds)()}"


# Bytes.


def flip(draw: Random, file: Path) -> str:
    content = bytearray(file.read_bytes())
    places = [draw.randrange(len(content)) for _ in range(draw.choice((1, 1, 1, 5)))]
    bits = [1 << draw.randrange(8) for _ in places]
    for place, bit in zip(places, bits, strict=True):
        content[place] ^= bit
    file.write_bytes(content)
    return f"flip bits {bits} of bytes {places}"


def truncate(draw: Random, file: Path) -> str:
    size = file.stat().st_size
    kept = draw.choice((draw.randrange(size), size - 1, min(size, 8)))
    os.truncate(file, kept)
    return f"truncate to {kept} of {size} bytes"


def append(draw: Random, file: Path) -> str:
    added = draw.choice((b"\0", b"\n", b" ", b"}", b"x" * 1000, draw.randbytes(9)))
    with file.open("ab") as out:
        out.write(added)
    return f"append {added[:12]!r}"


def empty(draw: Random, file: Path) -> str:
    file.write_bytes(b"")
    return "empty"


def overwrite(draw: Random, file: Path) -> str:
    content = bytearray(file.read_bytes())
    begin = draw.randrange(len(content))
    size = min(len(content) - begin, draw.choice((1, 4, 64)))
    filled = draw.choice((b"\0", b"\xff", None))
    content[begin : begin + size] = filled * size if filled else draw.randbytes(size)
    file.write_bytes(content)
    return f"overwrite {size} bytes from {begin} on with {filled or 'random ones'}"


def repeat(draw: Random, file: Path) -> str:
    content = file.read_bytes()
    begin = draw.randrange(len(content))
    part = content[begin : begin + draw.choice((1, 8, 100))]
    file.write_bytes(content[:begin] + part + content[begin:])
    return f"repeat {len(part)} bytes from {begin} on"


def cut(draw: Random, file: Path) -> str:
    content = file.read_bytes()
    begin = draw.randrange(len(content))
    size = draw.choice((1, 2, 8, 100))
    file.write_bytes(content[:begin] + content[begin + size :])
    return f"cut {size} bytes from {begin} on"


def other_content(draw: Random, file: Path) -> str:
    content = draw.choice(
        (b"{}", b"[]", b"null", b"0", b'""', b"\xef\xbb\xbf{}", b"\x80\x04N.", b"PK\x03\x04", b"\n")
    )
    file.write_bytes(content)
    return f"replace the content by {content!r}"


# What lies in the place of the file.


def remove(draw: Random, file: Path) -> str:
    file.unlink()
    return "remove"


def link_to_device(draw: Random, file: Path) -> str:
    device = draw.choice(("/dev/zero", "/dev/null"))
    file.unlink()
    file.symlink_to(device)
    return f"link to {device}"


def link_to_folder(draw: Random, file: Path) -> str:
    file.unlink()
    file.symlink_to(file.parent, target_is_directory=True)
    return "link to its folder"


def link_to_itself(draw: Random, file: Path) -> str:
    file.unlink()
    file.symlink_to(file.name)
    return "link to itself"


def folder_instead(draw: Random, file: Path) -> str:
    file.unlink()
    file.mkdir()
    return "a folder in its place"


def pipe_instead(draw: Random, file: Path) -> str:
    file.unlink()
    os.mkfifo(file)
    return "a named pipe in its place"


def swap(draw: Random, file: Path, others: list[Path]) -> str:
    """Replace a file by one of another folder, most often one of the same name."""
    alike = [other for other in others if other.name == file.name]
    other = draw.choice(alike if alike and draw.random() < 0.8 else others)
    shutil.copyfile(other, file)
    return f"replace by {other.parent.parent.name}/{other.parent.name}/{other.name}"


BYTES: tuple[Mutation, ...] = (
    *(flip, flip, truncate, append, empty, overwrite, repeat, cut, other_content),
)
PLACES: tuple[Mutation, ...] = (
    *(remove, link_to_device, link_to_folder, link_to_itself, folder_instead, pipe_instead),
)


# JSON.


def fields(draw: Random, file: Path) -> str:
    """Change one value or name anywhere in a JSON file."""
    document = json.loads(file.read_bytes())
    said, changed, raw = change_value(draw, document)
    text = json.dumps(changed, indent=1)
    file.write_text(text if raw is None else text.replace(json.dumps(RAW), raw), encoding="utf-8")
    return said


def change_value(draw: Random, document: Any) -> tuple[str, Any, str | None]:
    """A JSON document with one change, what it is, and the text that `RAW` stands for in it."""
    places = list(_places(document))
    # Long lists would be all that is ever changed.
    short = [place for place in places if len(place) < 2 or not isinstance(place[-1], int)]
    path = draw.choice(short if draw.random() < 0.8 else places)
    name = "/".join(map(str, path))
    if not path:
        value, raw = _other_value(draw, document)
        return f"the whole is {_shown(value, raw)}", value, raw
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    key, operation = path[-1], draw.random()
    if operation < 0.15:
        del parent[key]
        return f"without {name}", document, None
    if operation < 0.25 and isinstance(parent, dict):
        other = draw.choice((str(key) + "x", str(key)[:-1], str(key).upper(), ""))
        parent[other] = parent.pop(key)
        return f"{name} is called {other!r}", document, None
    if operation < 0.3 and isinstance(parent, dict):
        value, _ = _other_value(draw, parent[key])
        with contextlib.suppress(TypeError, ValueError):
            twice = f"{json.dumps(parent.pop(key))}, {json.dumps(key)}: {json.dumps(value)}"
            parent[key] = RAW
            return f"{name} is there twice, then {_shown(value, None)}", document, twice
    if operation < 0.35 and isinstance(parent, dict):
        parent[f"extra{draw.randrange(9)}"] = draw.choice(NUMBERS)
        return f"an extra field beside {name}", document, None
    value, raw = _other_value(draw, parent[key])
    parent[key] = value
    return f"{name} is {_shown(value, raw)}", document, raw


def _other_value(draw: Random, value: Any) -> tuple[Any, str | None]:
    """Another value, most often of a kind that is close to the one that was there."""
    roll = draw.random()
    if roll < 0.15:
        return RAW, draw.choice(RAW_VALUES)
    if roll < 0.2:
        return draw.choice(("y" * 100_000, [0] * 100_000, [[]], {}, [], {"": {}})), None
    if isinstance(value, bool) or value is None:
        return draw.choice((not value, *NUMBERS, *STRINGS)), None
    if isinstance(value, int | float) and roll < 0.8:
        near = (value + 1, value - 1, -value, value * 2, float(value), str(value), [value])
        return draw.choice((*NUMBERS, *near)), None
    if isinstance(value, str) and roll < 0.8:
        near = (value[:-1], value + "x", value.upper(), _misspelt(draw, value), [value])
        return draw.choice((*STRINGS, *near)), None
    if isinstance(value, list) and value and roll < 0.8:
        near = (value[:-1], value + value[:1], value[::-1], value[0], {"0": value[0]}, [value])
        return draw.choice(near), None
    if isinstance(value, dict) and roll < 0.8:
        return draw.choice((list(value), list(value.values()), {"x": value}, {})), None
    return draw.choice((*NUMBERS, *STRINGS, [], {})), None


def _misspelt(draw: Random, word: str) -> str:
    if not word:
        return "x"
    place = draw.randrange(len(word))
    return word[:place] + draw.choice("nxq-_") + word[place + 1 :]


def _places(document: Any, path: tuple = ()) -> Iterator[tuple]:
    yield path
    if isinstance(document, dict):
        for key, value in document.items():
            yield from _places(value, (*path, key))
    elif isinstance(document, list):
        for key, value in enumerate(document):
            yield from _places(value, (*path, key))


def _shown(value: Any, raw: str | None) -> str:
    shown = repr(value) if raw is None else raw
    return shown if len(shown) < 60 else f"{shown[:30]}… ({len(shown)} characters)"


# Tensors.


def tensors(draw: Random, file: Path) -> str:
    """Change the header or the numbers of a safetensors file."""
    try:
        header, data = read_header(file.read_bytes())
    except (ValueError, struct.error):  # it has been damaged already
        return append(draw, file)
    names = [name for name in header if name != "__metadata__"]
    if not names:
        return empty(draw, file)
    name = draw.choice(names)
    entry = header[name]
    begin, end = entry["data_offsets"]
    roll = draw.randrange(12)
    raw, said = None, ""
    if roll == 0:
        place = draw.randrange(len(entry["shape"]) + 1)
        value = draw.choice((-1, 0, 1, 10**9, 2**63, 2**64, 1.5, "3", None))
        entry["shape"] = [*entry["shape"][:place], value, *entry["shape"][place + 1 :]]
        said = f"shape {entry['shape']}"
    elif roll == 1:
        entry["shape"] = draw.choice((entry["shape"][::-1], [math.prod(entry["shape"])], [], {}))
        said = f"shape {entry['shape']}"
    elif roll == 2:
        wide = {1: ("BOOL", "I8", "U8", "F8_E4M3"), 2: ("F16", "BF16", "I16", "U16")}
        wide |= {4: ("I32", "U32", "F32"), 8: ("I64", "F64", "U64", "C64")}
        size = (end - begin) // max(1, math.prod(entry["shape"]))
        entry["dtype"] = draw.choice((*wide.get(size, ()), "F32", "F64", "f32", "O", 7))
        said = f"dtype {entry['dtype']}"
    elif roll == 3:
        value = draw.choice((-1, 0, begin + 4, end + 4, 2**63, 10**12, None))
        entry["data_offsets"][draw.randrange(2)] = value
        said = f"offsets {entry['data_offsets']}"
    elif roll == 4:
        header[draw.choice((name + "x", name[:-1], "support.block_of", ""))] = header.pop(name)
        said = "renamed"
    elif roll == 5:
        data = data[:begin] + data[end:]
        for other in header.values():
            if isinstance(other.get("data_offsets"), list) and other["data_offsets"][0] >= end:
                other["data_offsets"] = [at - end + begin for at in other["data_offsets"]]
        del header[name]
        said = "left out"
    elif roll in (6, 7, 8):
        return _spoil_numbers(draw, file, name, entry)
    elif roll == 9:
        said, header, raw = change_value(draw, header)
        name = "header"
    elif roll == 10:
        size = draw.choice((0, 1, 2**31, 2**63, 2**64 - 1, len(data)))
        content = file.read_bytes()
        file.write_bytes(struct.pack("<Q", size) + content[8:])
        return f"the header has {size} bytes, it says"
    else:
        wide = {"extra": {"dtype": "F32", "shape": [0], "data_offsets": [len(data), len(data)]}}
        header |= wide
        said = "an extra tensor beside it"
    write_header(file, header, data, raw)
    return f"{name}: {said}"


def _spoil_numbers(draw: Random, file: Path, name: str, entry: dict[str, Any]) -> str:
    """Change some numbers of a tensor, with the header as it was."""
    content = bytearray(file.read_bytes())
    size = struct.unpack("<Q", content[:8])[0]
    begin, end = (8 + size + at for at in entry["data_offsets"])
    formats = {"F32": "f", "F64": "d", "I64": "q", "I32": "i", "U8": "B", "BOOL": "B"}
    code = formats.get(entry["dtype"], "B")
    width = struct.calcsize(code)
    if end - begin < width:
        return empty(draw, file)
    floats = (math.nan, math.inf, -math.inf, 1e30, -1e30, 0.0, 1e-30)
    whole = (-1, -(2**31), 2**31 - 1, 0, 10**6)
    if code == "q":
        whole = (*whole, 2**62, -(2**62))
    value = draw.choice(floats if code in "fd" else (255, 2, 0) if code == "B" else whole)
    count = draw.choice((1, 1, (end - begin) // width))
    for _ in range(min(count, 4000)):
        place = begin + draw.randrange((end - begin) // width) * width
        struct.pack_into(f"<{code}", content, place, value)
    file.write_bytes(content)
    return f"{name}: {count} numbers are {value}"


def read_header(content: bytes) -> tuple[dict[str, Any], bytes]:
    """The header of a safetensors file, and what follows it."""
    size = struct.unpack("<Q", content[:8])[0]
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def write_header(file: Path, header: Any, data: bytes, raw: str | None = None) -> None:
    text = json.dumps(header)
    if raw is not None:
        text = text.replace(json.dumps(RAW), raw)
    encoded = text.encode()
    encoded += b" " * (-len(encoded) % 8)
    file.write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)


# Arrays of numbers without a header, and lines of text.


def numbers(draw: Random, file: Path) -> str:
    content = bytearray(file.read_bytes())
    width = 8 if "documents" in file.name else 2
    value = draw.choice((0, 1, 255, 2**15, 2 ** (8 * width) - 1, 2 ** (8 * width - 1)))
    count = draw.choice((1, 1, 5))
    for _ in range(count):
        place = draw.randrange(max(1, len(content) // width)) * width
        content[place : place + width] = value.to_bytes(width, "little")
    file.write_bytes(content)
    return f"{count} numbers are {value}"


def lines(draw: Random, file: Path) -> str:
    """Change one line of a text: leave it out, double it, or change a word of it."""
    every = file.read_bytes().split(b"\n")
    place = draw.randrange(len(every))
    roll = draw.randrange(6)
    if roll == 0:
        del every[place]
        said = f"without line {place + 1}"
    elif roll == 1:
        every.insert(place, every[place])
        said = f"line {place + 1} twice"
    elif roll == 2:
        other = draw.randrange(len(every))
        every[place], every[other] = every[other], every[place]
        said = f"lines {place + 1} and {other + 1} exchanged"
    else:
        words = re.split(rb"(\s+|=)", every[place])
        number = draw.randrange(0, len(words), 2)
        odd = (b"", b"nan", b"-inf", b"1e999", b"-1", b"0", b"1000000000", b"9" * 5000, b"\xff")
        odd = (*odd, b"\0", b'"x"', b"true", b"[]", b"x" * 100_000, b"[" * NESTED, b"1.5", b"a b")
        words[number] = draw.choice(odd)
        every[place] = b"".join(words)
        said = f"word {number // 2 + 1} of line {place + 1} is {words[number][:20]!r}"
    file.write_bytes(b"\n".join(every))
    return said


# Hashes.


def refit_hashes(folder: Path, *, sealed: bool = True) -> None:
    """Correct all SHA-256 that the JSON files of a folder have of others and of themselves.

    sealed: whether a file's hash of itself is corrected, or left out as in older files.
    """
    for _ in range(3):  # files with hashes of others, whose hashes again others have
        for path in sorted(folder.rglob("*.json")):
            with contextlib.suppress(ValueError, RecursionError):
                _refit_file(path, sealed)


def _refit_file(path: Path, sealed: bool) -> None:
    if path.is_symlink() or not path.is_file():
        return
    document = json.loads(path.read_bytes())
    before = json.dumps(document)
    _refit(document, path.parent)
    if isinstance(document, dict) and SEAL in document:
        del document[SEAL]
        if sealed:
            document[SEAL] = hashlib.sha256(
                json.dumps(document, sort_keys=True).encode()
            ).hexdigest()
    if json.dumps(document) != before:
        path.write_text(json.dumps(document, indent=1), encoding="utf-8")


def _refit(value: Any, folder: Path, name: str = "") -> None:
    """Correct the hashes in a JSON value in place."""
    if isinstance(value, list):
        for item in value:
            _refit(item, folder)
    if not isinstance(value, dict):
        return
    for key, item in value.items():
        file = {"sha256": f"{name}.bin", "documents_sha256": f"{name}.documents.bin"}.get(key, key)
        if isinstance(item, str) and len(item) == 64:
            value[key] = _digest(folder / file) or item
        else:
            _refit(item, folder, key)


def _digest(path: Path) -> str | None:
    try:
        if path.is_symlink() or not path.is_file():
            return None
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except (OSError, ValueError):
        return None


def _is_json(content: bytes) -> bool:
    if content[:1] not in (b"{", b"["):
        return False
    try:
        json.loads(content)
    except (ValueError, RecursionError):
        return False
    return True


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in content
