"""The flags of the commands, read from their argument dataclasses.

Shell completion and the reference of the commands are made from them.
"""

from __future__ import annotations

import dataclasses
import importlib
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from bighmm.base.docstrings import field_docstrings
from bighmm.cli.common import DEVICES
from bighmm.lm.options import OPTIONS as BASELINE_OPTIONS
from bighmm.model.options import OPTIONS as PARAMETERISATION_OPTIONS

# Fields of type str that name a file or a folder.
PATHS = {
    *("data", "tokenizer", "paths", "labels", "pretrained", "head", "teacher", "language_model"),
    *("more", "teachers"),
}
CHOICES = {  # of fields of type str
    "device": DEVICES,
    "family": ("hmm", *BASELINE_OPTIONS),
    "parameterisation": tuple(PARAMETERISATION_OPTIONS),
}


@dataclass(frozen=True)
class Flag:
    """One flag of a command."""

    name: str  # such as --length
    about: str
    takes_value: bool
    choices: tuple[str, ...] = ()
    is_path: bool = False
    default: Any = None


@dataclass(frozen=True)
class Command:
    """A command with its flags."""

    name: str
    about: str
    flags: list[Flag]


def commands_with_flags(commands: dict[str, tuple[str, str]]) -> list[Command]:
    """The commands with all their flags; `commands` gives the module and a line about each."""
    return [
        Command(name, about, flags_of_command(name, at)) for name, (at, about) in commands.items()
    ]


def flags_of(arguments: Any, default: Any = None) -> Iterator[Flag]:
    """The flags that tyro makes of a dataclass, including those of nested dataclasses.

    default: an instance whose values are the defaults; without it those of the fields.
    """
    hints = typing.get_type_hints(arguments, include_extras=True)
    texts = field_docstrings(arguments)
    for field in dataclasses.fields(arguments):
        hint, marks = hints[field.name], []
        if typing.get_origin(hint) is Annotated:
            hint, *marks = typing.get_args(hint)
        value = getattr(default, field.name, None) if default is not None else _default(field)
        if dataclasses.is_dataclass(hint):
            yield from flags_of(hint, value)
        elif tyro.conf.Positional not in marks:
            yield _flag(field.name, hint, marks, value, texts.get(field.name, ""))


def flags_of_command(command: str, module: str) -> list[Flag]:
    """The flags of a command, which its module has as one dataclass or a function gives several."""
    name = command.replace("-", "_")
    found = importlib.import_module(module)
    several = getattr(found, f"{name}_arguments", None)
    title = "".join(part.title() for part in name.split("_"))
    kinds = several() if several is not None else [getattr(found, f"{title}Arguments")]
    flags = {flag.name: flag for kind in kinds for flag in flags_of(kind)}
    return [*flags.values(), Flag("--help", "show this help message and exit", False)]


def _flag(field: str, hint: Any, marks: list[Any], value: Any, text: str) -> Flag:
    names = [mark.name for mark in marks if getattr(mark, "name", None)]
    name = names[0] if names else field.replace("_", "-")
    about = next((mark.help for mark in marks if getattr(mark, "help", None)), text)
    if hint is bool and value is True:
        return Flag(f"--no-{name}", f"Turns this off: {about}", False)
    if hint is bool:
        return Flag(f"--{name}", about, False, default=value)
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    options = typing.get_args(hint) if union else (hint,)
    choices = list(CHOICES.get(field, ()))
    for option in options:
        if typing.get_origin(option) is Literal:
            choices += map(str, typing.get_args(option))
        elif option is bool:
            choices += ["True", "False"]
    is_path = Path in options or field in PATHS
    return Flag(f"--{name}", about, True, tuple(choices), is_path, value)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default
