"""A corpus of English text that comes with every Python, so that no download is needed.

The documents are the help topics of `pydoc`, and for each module of the standard library its
docstrings and its comments of two lines or more. The sources are parsed, never imported. Only prose
is kept: one sentence per line, and each sentence once in the whole corpus.

The text depends only on the Python version. Packages that some distributions do not install
(tkinter, distutils, lib2to3, …) are not read.
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

# Increased whenever the text changes for the same Python, so that cached corpora become invalid.
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
    """(name, text) of every document: all `topic:NAME`, then all `module:NAME`, sorted by name.

    Raises ValueError if this Python has no sources of its standard library.
    """
    return list(_documents())


def splits() -> dict[str, list[tuple[str, str]]]:
    """The documents of train, valid and test, which have about 90, 5 and 5 % of the words.

    Topics and modules are divided separately, so each split has both. Documents are taken in the
    order of the hash of their names, and each goes to test if it fits there, else to valid if it
    fits there, else to train.
    """
    parts: dict[str, list[tuple[str, str]]] = {"train": [], "valid": [], "test": []}
    for prefix in ("topic:", "module:"):
        group = [item for item in documents() if item[0].startswith(prefix)]
        words = {name: len(text.split()) for name, text in group}
        share = sum(words.values()) / 20
        filled = {"test": 0, "valid": 0}
        split_of = dict.fromkeys(words, "train")
        for name in sorted(words, key=lambda name: hashlib.sha256(name.encode()).digest()):
            for part in filled:
                if filled[part] + words[name] <= share * 1.02:
                    filled[part] += words[name]
                    split_of[name] = part
                    break
        for item in group:
            parts[split_of[item[0]]].append(item)
    return parts


def fingerprint() -> str:
    """The SHA-256 of all sources of the text; much faster than extracting the text."""
    digest = hashlib.sha256(f"{VERSION}".encode())
    for name, text in sorted(_topics().items()):
        digest.update(f"\0{name}\0{text}".encode())
    for name, path in _modules():
        digest.update(f"\0{name}\0".encode() + path.read_bytes())
    return digest.hexdigest()


def prose(text: str) -> list[str]:
    """The English sentences of one docstring, topic or comment, without markup and code."""
    sentences = []
    for paragraph in _paragraphs(text):
        for pattern, replacement in _MARKUP:
            paragraph = pattern.sub(replacement, paragraph)
        sentences += [sentence for sentence in _sentences(paragraph) if _is_prose(sentence)]
    return sentences


@functools.cache
def _documents() -> tuple[tuple[str, str], ...]:
    raw = [(f"topic:{name}", [text]) for name, text in sorted(_topics().items())]
    was_enabled = gc.isenabled()
    gc.disable()  # syntax trees have no cycles, and the search for cycles takes half of the time
    try:
        raw += [(f"module:{name}", list(_texts(path))) for name, path in _modules()]
    finally:
        if was_enabled:
            gc.enable()
    seen: set[str] = set()
    result = []
    for name, texts in raw:
        lines = []
        for sentence in (sentence for text in texts for sentence in prose(text)):
            key = sentence.lower().rstrip(".:")
            if key not in seen:
                seen.add(key)
                lines.append(sentence)
        if lines:
            result.append((name, "\n".join(lines) + "\n"))
    return tuple(result)


def _topics() -> dict[str, str]:
    """The texts of the help topics, by name."""
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
    """The docstrings and the comments of two lines or more in a source file, in its order."""
    source = decode_source(path.read_bytes())
    texts: list[tuple[int, str]] = []
    inside: set[int] = set()  # lines of docstrings, where "#" does not start a comment
    statements: list[ast.AST] = [ast.parse(source)]
    while statements:
        node = statements.pop()
        # Only statements can hold definitions; ast.walk, which also visits expressions, takes
        # twice the time.
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
_MARKUP = [
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


def _paragraphs(text: str) -> Iterator[str]:
    """Paragraphs and list items, each as one line, without code, doctests, tables and rules."""
    literal: int | None = None  # the indentation of the line whose "::" begins a code block
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
    """The lines of a block joined to paragraphs; list items and lines of code end a paragraph."""
    paragraph: list[str] = []
    for line in lines:
        marker = _ITEM.match(line)
        code = _CODE.match(line) and not _mostly_plain(line.split())
        if paragraph and (marker or code or _ENTRY.match(line)):
            yield " ".join(paragraph)
            paragraph = []
        if not code:
            paragraph.append(line[marker.end() if marker else 0 :].strip())
    if paragraph:
        yield " ".join(paragraph)


def _sentences(paragraph: str) -> Iterator[str]:
    """The sentences of a paragraph; the period of an abbreviation does not end a sentence."""
    sentence = ""
    for piece in _END.split(" ".join(paragraph.split())):
        sentence = f"{sentence} {piece}" if sentence else piece
        if not _ABBREVIATION.search(sentence):
            yield sentence
            sentence = ""
    if sentence:
        yield sentence


def _is_prose(sentence: str) -> bool:
    """Whether a sentence is English: most words are plain words, and one is a very common word.

    A sentence of plain words only, with a period, needs no common word.
    """
    words = sentence.split()
    if not 3 <= len(words) <= 100 or not _mostly_plain(words):
        return False
    if _BANNED.search(sentence) or not sentence.isprintable():
        return False
    all_plain = sentence.endswith(".") and all(map(_PLAIN.match, words))
    return all_plain or _COMMON.search(sentence) is not None


def _mostly_plain(words: list[str]) -> bool:
    return sum(1 for word in words if _PLAIN.match(word)) >= 0.6 * len(words)
