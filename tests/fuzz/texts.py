"""Attack: odd text files as corpora, compressed ones among them."""

from __future__ import annotations

import functools
import gzip
import lzma
import os
import random
import re
from collections.abc import Callable
from pathlib import Path

from .commands import ask
from .originals import Originals
from .outcome import Case, Failure, Say

BOMB = 1 << 30  # bytes that an .xz file of some hundred kilobytes becomes, or a .gz of a million
UNITS = (b"\0", b"a", b"a b ")
NAMES = (
    *("odd.txt", "odd.txt", "odd.txt", "odd", "odd.txt.xz", "odd.xz", "odd.txt.gz", "odd.gz"),
    "ödd [b] 🦜.txt",
)
PACK: dict[str, Callable[[bytes], bytes]] = {".xz": lzma.compress, ".gz": gzip.compress}


def attack(originals: Originals, case: Case, draw: random.Random, place: Path, say: Say) -> str:
    """Prepare an odd text and ask what is known about it, or train or evaluate on it."""
    os.environ["BIGHMM_CACHE"] = str(place / "cache")
    content = odd_text(draw)
    name = draw.choice(NAMES)
    if name.endswith(tuple(PACK)):
        content = odd_archive(draw, content, name[-3:], say)
    layout = draw.choice(("file", "file", "file", "folder", "ptb", "wikitext", "splits", "link"))
    path = _laid_out(draw, place, layout, name, content)
    say(f"{layout} {name}: {len(content):,} bytes {content[:60]!r}")
    question = draw.choice(("data", "data", "cluster", "ngram", "train", "eval", "flags"))
    say(f"question {question}")
    if question == "data":
        found = ask("data", "--data", path)
        _check_counts(found, content, layout, name)
    elif question == "cluster":
        ask("cluster", "--data", path, "--classes", draw.choice((1, 2, 3, 50)))
    elif question == "ngram":
        ask("train", "--family", "ngram", "--order", 2, "--data", path, "--out", place / "run")
    elif question == "eval":
        ask("eval", originals.path(draw.choice(("dense-scalar", "ngram", "lstm"))), "--data", path)
    elif question == "train":
        small = ("--states", 4, "--blocks", 2, "--width", 4, "--epochs", 0.1, "--batch", 2)
        ask("train", "--data", path, *small, "--window", 4, "--out", place / "run")
    else:
        flags = draw.sample(FLAGS, 2)
        say(str(flags))
        ask("data", "--data", path, *[word for flag in flags for word in flag])
    return "same"


FLAGS = (
    *(("--min-count", 1), ("--min-count", 3), ("--max-size", 2), ("--max-size", 5)),
    *(("--lowercase", "True"), ("--lowercase", "False"), ("--tokenizer", "nowhere.json")),
)


def odd_text(draw: random.Random) -> bytes:
    """A text with something odd about it."""
    lines = ["the cat sat on the mat", "a dog ran", "the dog saw a cat", "a big red mat ."] * 5
    roll = draw.randrange(24)
    text = "\n".join(lines)
    match roll:
        case 0:
            return draw.choice(
                (b"", b"\n", b" ", b"\n \n\t\n", b"\r\n\r\n", b"\x0c\n", "\u3000".encode())
            )
        case 1:
            return draw.randbytes(draw.choice((1, 10, 1000)))
        case 2:
            return ("word " * draw.choice((1000, 300_000))).encode()
        case 3:
            return text.replace("cat", "c\0t").encode()
        case 4:
            return b"\xef\xbb\xbf" * draw.choice((1, 2)) + text.encode()
        case 5:
            return text.replace("\n", "\r\n").encode()
        case 6:
            return text.replace("\n", "\r").encode()
        case 7:
            return text.replace("dog", "\ud800").encode("utf-8", "surrogatepass")
        case 8:
            return text.replace("dog", "caf\xe9").encode("latin-1")
        case 9:
            return text.encode(draw.choice(("utf-16", "utf-32", "utf-16-le")))
        case 10:
            return text.replace(
                " ", draw.choice("\u2028\u2029\u0085\x0b\x0c\x1c\u00a0\u200b")
            ).encode()
        case 11:
            return ("x" * draw.choice((10**5, 10**7)) + "\n" + text).encode()
        case 12:
            return "\n".join(lines[: draw.randrange(5)]).encode()
        case 13:
            return "\n".join(f"w{i} v{i} u{i}" for i in range(2000)).encode()
        case 14:
            return "\n\n".join(lines).encode()
        case 15:
            return text.replace("cat", draw.choice(("<unk>", "<eos>", "</s>", "<s>"))).encode()
        case 16:
            return "\n".join(["🦜漢字", "é", "ﷺ", "\U0010ffff"] * 9).encode()
        case 17:
            return b"\x1b[31m" + text.encode() + b"[bold]x[/] {0} %s"
        case 18:
            return ("(" * 3000 + "\n" + "a." * 3000 + "\n") * 3 and (
                text + "\n" + "'" * 9999
            ).encode()
        case 19:
            return b" = Heading = \n\n text here \n\n = = Sub = = \n\n more \n" * 4
        case 20:
            return "\n".join(draw.choice(("", " ", "a", "b a")) for _ in range(200)).encode()
        case 21:
            return ("a\n" * 20_000).encode()
        case _:
            return _spliced(draw, text.encode())


def _spliced(draw: random.Random, content: bytes) -> bytes:
    """A text with a few random bytes somewhere."""
    for _ in range(draw.choice((1, 2, 10))):
        place = draw.randrange(len(content))
        content = content[:place] + draw.randbytes(draw.choice((1, 2, 4))) + content[place:]
    return content


def odd_archive(draw: random.Random, content: bytes, kind: str, say: Say) -> bytes:
    """The content as .xz or .gz, damaged or much larger than it seems."""
    roll = draw.randrange(6)
    if roll == 0:
        say("a bomb")
        return bomb(draw.choice(UNITS), kind)
    packed = PACK[kind](content)
    if roll == 1:
        return packed[: draw.randrange(len(packed))]
    if roll == 2:
        return packed + draw.choice((packed, b"\0" * 4, b"more"))
    if roll == 3:
        return content
    if roll == 4:
        place = draw.randrange(len(packed))
        return (
            packed[:place] + bytes([packed[place] ^ (1 << draw.randrange(8))]) + packed[place + 1 :]
        )
    return packed


@functools.cache
def bomb(unit: bytes, kind: str) -> bytes:
    """A small packed file of one enormous line: many streams, which are read as one."""
    part = unit * ((1 << 24) // len(unit))
    packed = lzma.compress(part, preset=0) if kind == ".xz" else gzip.compress(part)
    return packed * (BOMB >> 24)


def _laid_out(draw: random.Random, place: Path, layout: str, name: str, content: bytes) -> Path:
    if layout in ("file", "link"):
        (place / name).write_bytes(content)
        if layout == "link":
            (place / "link.txt").symlink_to(place / name)
            return place / "link.txt"
        return place / name
    folder = place / "text"
    folder.mkdir()
    if layout == "folder":
        (folder / name).write_bytes(content)
        (folder / ".hidden.txt").write_bytes(b"\xff")
        (folder / "loop").symlink_to(folder, target_is_directory=True)
        return folder
    form = {"ptb": "ptb.{}.txt", "wikitext": "wiki.{}.tokens", "splits": "{}.txt"}[layout]
    suffix = name[-3:] if name.endswith(tuple(PACK)) else ""
    plain = b"the cat sat\n"
    odd = draw.randrange(3)
    for number, split in enumerate(("train", "valid", "test")):
        here = content if number == odd else PACK[suffix](plain) if suffix else plain
        (folder / (form.format(split) + suffix)).write_bytes(here)
    return folder


def _check_counts(found: dict, content: bytes, layout: str, name: str) -> None:
    """The lines of a plain text file must be counted as they are counted here.

    Fewer than three, and very long ones, are documents, which are cut into more.
    """
    if layout not in ("file", "link") or name.endswith(tuple(PACK)):
        return
    lines = re.split("\n", content.decode().removeprefix("\ufeff"))
    lengths = [len(line) for line in lines if line.strip()]
    expected = len(lengths)
    counted = sum(split["lines"] for split in found["splits"].values())
    cut = expected < 3 or sum(lengths) > 5000 * expected
    if counted < expected if cut else counted != expected:
        raise Failure(f"{counted} lines are counted, and there are {expected}")
