"""Arguments with which each command works, to which odd ones are added.

Those of a command that is not in the table here are found from what its dataclass asks for, so that
new commands are attacked too.
"""

from __future__ import annotations

import dataclasses
import importlib
import random
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from bighmm.cli.main import COMMANDS

from .originals import Originals

SERVERS = ("ask", "explore", "serve")  # which answer until they are stopped
HMMS = ("blocked-flat", "blocked-two-level", "dense-scalar", "per-token", "words-as-blocks")
ANY_MODEL = (*HMMS, "mixture", "ngram", "lstm", "transformer")
FOR_ANY_MODEL = ("eval", "score", "next", "sample", "guide", "distill-lm", "write")
TEXTS = (
    *("", " ", "w01", "w01 w02 nowhere", "\udcff", "w01\nw02", "w01 " * 20_000, "___", "w01 ___"),
    *("___0", "___3", "___1-4 w01", "___9999999999999999", "___1-100 ___1-100", "___4-1 w01"),
    *("w01 ___100", "___ " * 40, "___2_", "\0w01", "<eos>", "<unk> ___", "w01\r\n", "\u2028"),
)
TRAINING = ("--states", "4", "--blocks", "2", "--width", "4", "--epochs", "0.1", "--batch", "2")


def working_arguments(name: str, originals: Originals, draw: random.Random) -> list[str]:
    """Arguments with which a command works, most often."""
    model = str(originals.path(draw.choice(ANY_MODEL if name in FOR_ANY_MODEL else HMMS)))
    data = ["--data", str(originals.text)]
    text = draw.choice(TEXTS) if draw.random() < 0.3 else "w01 w07"
    known = {
        "train": [*data, *TRAINING, "--window", "4", "--device", "cpu", "--out", "run"],
        "eval": [model, *data],
        "score": [model],
        "next": [model, *([text] if draw.random() < 0.7 else [])],
        "sample": [model, "--length", "4"],
        "fill": [model, draw.choice(TEXTS) if draw.random() < 0.4 else "w01 ___ w02"],
        "tag": [model, text],
        "states": [model, *data],
        "posterior": [model, text],
        "guide": [model, draw.choice(("nowhere", model)), "--must", "w01"],
        "distill": ["random", *data, "--states", "4", "--cluster-tokens", "100", "--out", "labels"],
        "distill-lm": [draw.choice(("nowhere", model)), "--out", "run", "--tokens", "100"],
        "cluster": [*data, "--classes", "3"],
        "data": data,
        "arpa": draw.choice(
            (
                ["export", str(originals.path("ngram")), "--out", "run"],
                ["import", str(originals.path("arpa")), "--out", "run"],
                ["import", str(originals.path("arpa-gz")), "--out", "run"],
            )
        ),
        "mix": [model, model, *data, "--out", "run"],
        "write": [model, "--tokens", "100", "--out", "run"],
        "reproduce": draw.choice(([], ["chiu2020"], ["nobody"], ["lee2025/table1"])),
    }
    return known[name] if name in known else found_arguments(name, originals, draw)


def found_arguments(name: str, originals: Originals, draw: random.Random) -> list[str]:
    """What a command's dataclass asks for: all that has no default, and some that has one."""
    module = importlib.import_module(COMMANDS[name][0])
    under = name.replace("-", "_")
    several = getattr(module, f"{under}_arguments", None)
    title = "".join(part.title() for part in under.split("_"))
    kind = draw.choice(several()) if several else getattr(module, f"{title}Arguments")
    words = []
    for field, hint, marks in _fields(kind):
        required = field.default is field.default_factory is dataclasses.MISSING
        positional = tyro.conf.Positional in marks
        if not required and not (positional and draw.random() < 0.5):
            continue
        values = _values(field.name, hint, originals, draw)
        if positional:
            words += values
        elif values:
            names = [mark.name for mark in marks if getattr(mark, "name", None)]
            words += [f"--{names[0] if names else field.name.replace('_', '-')}", *values]
    return words


def _fields(kind: Any) -> Iterator[tuple[dataclasses.Field[Any], Any, tuple[Any, ...]]]:
    """The fields of a dataclass and of those in it, with their types and marks."""
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        hint, marks = hints[field.name], ()
        if typing.get_origin(hint) is Annotated:
            hint, *rest = typing.get_args(hint)
            marks = tuple(rest)
        if dataclasses.is_dataclass(hint):
            yield from _fields(hint)
        else:
            yield field, hint, marks


def _values(name: str, hint: Any, originals: Originals, draw: random.Random) -> list[str]:
    """Words for a field that a command most likely takes."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(one for one in typing.get_args(hint) if one is not type(None))
    if typing.get_origin(hint) in (tuple, list):
        inner = typing.get_args(hint)[0]
        return [word for _ in range(2) for word in _values(name, inner, originals, draw)]
    if typing.get_origin(hint) is Literal:
        return [str(draw.choice(typing.get_args(hint)))]
    if hint in (int, float):
        return ["2"]
    if hint is bool:
        return []
    if name in ("out", "folder"):
        return ["run"]
    if name == "data":
        return [str(originals.text)]
    if hint is Path or any(part in name for part in ("model", "run", "source", "teacher")):
        return [str(originals.path(draw.choice(ANY_MODEL)))]
    return [draw.choice(TEXTS) if draw.random() < 0.3 else "w01 w07"]
