"""English text that comes with every Python: a corpus that needs no download.

The documents are the help topics of `pydoc` and, one document per module, the docstrings and the
comments of several lines in the sources of the standard library. The sources are parsed, never
imported. What is left is prose, one sentence per line, each sentence once in the whole corpus.

The text depends on the Python version and on nothing else of the machine: packages that some
distributions leave out or install apart (tkinter, distutils, lib2to3, ...) are not read.
"""

from __future__ import annotations

import ast
import functools
import gc
import hashlib
import inspect
import re
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib.util import decode_source
from pathlib import Path

# Raised whenever the cleaning below changes, so that prepared copies are not taken for current.
VERSION = 1

_SKIPPED = {
    "distutils",
    "encodings",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "test",
    "tests",
    "this",
    "tkinter",
    "turtledemo",
}


def documents() -> list[tuple[str, str]]:
    """(name, text) of every document: `topic:NAME` first, then `module:NAME`, each sorted.

    Raises ValueError where this Python has no sources of its standard library.
    """
    return list(_documents())


def splits() -> dict[str, list[tuple[str, str]]]:
    """The documents as train, valid and test, about 90, 5 and 5 % of the words.

    Topics and modules are divided separately, so each split has both. In the order of the hash of
    their names, documents fill test, then valid, then train; one that would overfill test or
    valid goes to train.
    """
    parts: dict[str, list[tuple[str, str]]] = {"train": [], "valid": [], "test": []}
    for prefix in ("topic:", "module:"):
        group = [item for item in documents() if item[0].startswith(prefix)]
        words = {name: len(text.split()) for name, text in group}
        share = sum(words.values()) / 20
        filled = {"test": 0, "valid": 0}
        home = dict.fromkeys(words, "train")
        for name in sorted(words, key=lambda name: hashlib.sha256(name.encode()).digest()):
            for part in filled:
                if filled[part] + words[name] <= share * 1.02:
                    filled[part] += words[name]
                    home[name] = part
                    break
        for item in group:
            parts[home[item[0]]].append(item)
    return parts


def fingerprint() -> str:
    """sha256 of everything the text is made from; much quicker than making the text."""
    digest = hashlib.sha256(f"{VERSION}".encode())
    for name, text in sorted(_topics().items()):
        digest.update(f"\0{name}\0{text}".encode())
    for name, path in _modules():
        digest.update(f"\0{name}\0".encode() + path.read_bytes())
    return digest.hexdigest()


@functools.cache
def _documents() -> tuple[tuple[str, str], ...]:
    raw = [(f"topic:{name}", [text]) for name, text in sorted(_topics().items())]
    collecting = gc.isenabled()
    gc.disable()  # syntax trees have no cycles, and looking for some takes half of the time
    try:
        raw += [(f"module:{name}", list(_texts(path))) for name, path in _modules()]
    finally:
        if collecting:
            gc.enable()
    seen: set[str] = set()
    made = []
    for name, texts in raw:
        lines = []
        for sentence in (sentence for text in texts for sentence in prose(text)):
            key = sentence.lower().rstrip(".:")
            if key not in seen:
                seen.add(key)
                lines.append(sentence)
        if lines:
            made.append((name, "\n".join(lines) + "\n"))
    return tuple(made)


def _topics() -> dict[str, str]:
    from pydoc_data.topics import topics

    return topics


def _modules() -> list[tuple[str, Path]]:
    """(dotted name, source file) of the modules of the standard library, sorted by name."""
    root = Path(sysconfig.get_path("stdlib"))
    tops = sys.stdlib_module_names - _SKIPPED
    found = []
    for top in tops:
        for path in [root / f"{top}.py", *(root / top).rglob("*.py")]:
            parts = path.relative_to(root).with_suffix("").parts
            if path.is_file() and not _SKIPPED.intersection(parts):
                found.append((".".join(parts).removesuffix(".__init__"), path))
    if not found:
        raise ValueError(
            "the pydoc corpus needs the sources of the Python standard library, and this Python "
            f"({sys.version.split()[0]}) has none; give a text file or a folder instead"
        )
    return sorted(found)


def _texts(path: Path) -> Iterator[str]:
    """Docstrings and comments of two lines or more, in the order of the file."""
    source = decode_source(path.read_bytes())
    texts: list[tuple[int, str]] = []
    inside: set[int] = set()  # the lines of docstrings, where a "#" starts no comment
    statements: list[ast.AST] = [ast.parse(source)]
    while statements:
        node = statements.pop()
        # Only statements hold definitions; walking the expressions too takes twice the time.
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            statements += getattr(node, field, None) or []
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and (text := ast.get_docstring(node)):
            texts.append((first.lineno, text))
            inside.update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    block: list[str] = []
    for number, line in enumerate([*source.split("\n"), ""], 1):
        stripped = line.strip()
        if stripped.startswith("#") and number not in inside:
            block.append(stripped.lstrip("#"))
        else:
            if len(block) > 1:
                texts.append((number, inspect.cleandoc("\n".join(["", *block]))))
            block = []
    return (text for _, text in sorted(texts))


_RULE = re.compile(r"\s*([=\-*~^#+_.\"`|]\s*){3,}$")
_ITEM = re.compile(r"\s*(?:[-*+o•]|\(?(?:\d{1,2}|[a-z])[.)]|\[\d+\])\s+(?=\S)")
_ENTRY = re.compile(r"\s*\w+(?:, \w+)*(?: --?|:) +\S")
_CODE = re.compile(
    r"\s*(?:(?:async )?(?:def|class|for|while|with|if|elif|else|try|except|finally|match|case)\b"
    r".*:\s*(?:(?:raise|return|yield|pass|break|print)\b.*|#.*)?$"
    r"|(?:async )?(?:def|class) \w+\W|import \w|from \S+ import "
    r"|(?:import|from|print|raise|assert|del|return|@|%|\$|#|<|\{|\}|\||\+-) ?\S*$"
    r"|[\w.\[\]]+ ?[-+*/|:]?= |.*::=|.*;$|[\w.]+\(.*\)(?: ->.*)?$|.*[=!]=|.*\w=[\w'\"\[({])"
)
_MARKS = [
    (re.compile(r"\.\. [\w-]+::\s*"), ""),
    (re.compile(r"^:(?:param|type|return|returns|rtype|raises)\b[^:]*:\s*"), ""),
    (re.compile(r":[\w:]+:`[!~]?([^`<]+?)(?:\s*<[^`>]*>)?`"), r"\1"),
    (re.compile(r"``(.+?)``|`([^`']+)[`']"), r"\1\2"),
    (re.compile(r"(?<![\w*])\*{1,2}(\w[^*\s]*|\w[^*]*[^*\s])\*{1,2}(?![\w*])"), r"\1"),
    (re.compile(r"\s?\[(?:\d+|#\w*)\]_?"), ""),
    (re.compile(r"\"([^\s\"]+)\""), r"\1"),
]
_END = re.compile(r"(?:(?<=[.!?])|(?<=[.!?][)\"'\]]))\s+(?=[\"'(\[]?[A-Z_])")
_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|etc|vs|cf|resp|Mr|Dr|No|St|sec|[A-Z])\.)$")
_PLAIN = re.compile(r"[(\"']*[A-Za-z][a-z]*(?:['’/-][A-Za-z]+)*[)\"']*[.,;:!?]*[)\"']*$|I$|--$")
_BANNED = re.compile(r"://|[Cc]opyright|[Aa]ll [Rr]ights|[Ll]icensed (?:to|under)|@\w+\.|\\\w|\$Id")
_COMMON = re.compile(
    r"(?i)\b(?:an?|and|any|are|as|at|be|by|can|does|for|from|has|have|if|in|into|is|its?|may|must|"
    r"not?|of|on|or|should|so|than|that|the|their|then|there|these|they|this|to|used|was|when|"
    r"where|which|will|with|without|would|you)\b(?![(.=_])"
)


def prose(text: str) -> list[str]:
    """The English sentences of one docstring, topic or comment, without markup and code."""
    found = []
    for paragraph in _paragraphs(text):
        for pattern, replacement in _MARKS:
            paragraph = pattern.sub(replacement, paragraph)
        found += [sentence for sentence in _sentences(paragraph) if _is_prose(sentence)]
    return found


def _paragraphs(text: str) -> Iterator[str]:
    """Unwrapped paragraphs and list items; code, doctests, tables and rules are left out."""
    literal: int | None = None  # the indentation of the line whose "::" announced a code block
    for block in re.split(r"\n\s*\n", text.expandtabs()):
        lines = [line for line in block.split("\n") if line.strip()]
        if not lines:
            continue
        indent = len(lines[0]) - len(lines[0].lstrip())
        if literal is not None and indent > literal:
            continue
        literal = None
        if any(re.match(r"\s*[=+-]{2,}[ +][ =+-]*$", line) for line in lines):
            continue
        prompt = next((i for i, x in enumerate(lines) if x.lstrip().startswith(">>>")), len(lines))
        lines = [line for line in lines[:prompt] if not _RULE.match(line)]
        if not lines or (indent and any(_CODE.match(line) for line in lines)):
            continue
        if lines[-1].rstrip().endswith("::"):
            literal = indent
            lines[-1] = lines[-1].rstrip()[:-1]
        yield from _joined(lines)


def _joined(lines: Iterable[str]) -> Iterator[str]:
    held: list[str] = []
    for line in lines:
        marker = _ITEM.match(line)
        code = _CODE.match(line) and not _mostly_plain(line.split())
        if held and (marker or code or _ENTRY.match(line)):
            yield " ".join(held)
            held = []
        if not code:
            held.append(line[marker.end() if marker else 0 :].strip())
    if held:
        yield " ".join(held)


def _sentences(paragraph: str) -> Iterator[str]:
    held = ""
    for piece in _END.split(" ".join(paragraph.split())):
        held = f"{held} {piece}" if held else piece
        if not _ABBREVIATION.search(held):
            yield held
            held = ""
    if held:
        yield held


def _is_prose(sentence: str) -> bool:
    """Whether it reads as English: mostly plain words, and some of the commonest among them."""
    words = sentence.split()
    if not 3 <= len(words) <= 100 or not _mostly_plain(words):
        return False
    if _BANNED.search(sentence) or not sentence.isprintable():
        return False
    in_full = sentence.endswith(".") and all(map(_PLAIN.match, words))
    return in_full or _COMMON.search(sentence) is not None


def _mostly_plain(words: list[str]) -> bool:
    return sum(1 for word in words if _PLAIN.match(word)) >= 0.6 * len(words)
