"""Shell completion: scripts for bash, zsh and fish, made from the commands' argument dataclasses.

The scripts are plain text and do not start Python when a user presses the tab key.
"""

from __future__ import annotations

import dataclasses
import importlib
import shlex
import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from bighmm.cli.common import DEVICES
from bighmm.lm.options import OPTIONS as BASELINE_OPTIONS
from bighmm.model.options import OPTIONS as PARAMETERISATION_OPTIONS

SHELLS = ("bash", "zsh", "fish")
# Fields of type str that name a file or a folder.
PATHS = {"data", "tokenizer", "paths", "labels", "pretrained", "head", "teacher", "language_model"}
CHOICES = {  # of fields of type str
    "device": DEVICES,
    "family": ("hmm", *BASELINE_OPTIONS),
    "parameterisation": tuple(PARAMETERISATION_OPTIONS),
}
MAIN_FLAGS = ("--help", "--version", "--completion")


@dataclass(frozen=True)
class Flag:
    """One flag of a command."""

    name: str  # such as --length
    about: str
    takes_value: bool
    choices: tuple[str, ...] = ()
    is_path: bool = False


@dataclass(frozen=True)
class Command:
    """A command with its flags."""

    name: str
    about: str
    flags: list[Flag]


def completion_script(shell: str, commands: dict[str, tuple[str, str]]) -> str:
    """The script for a shell; `commands` have their module and a line about them.

    Raises ValueError for a shell that is not known.
    """
    writers = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    if shell not in writers:
        raise ValueError(f"there is no completion for {shell!r}; choose from {', '.join(SHELLS)}")
    found = [Command(name, about, _flags(name, at)) for name, (at, about) in commands.items()]
    return writers[shell](found)


def _flags(command: str, module: str) -> list[Flag]:
    """The flags of a command, which its module has as one dataclass or a function gives several."""
    name = command.replace("-", "_")
    found = importlib.import_module(module)
    several = getattr(found, f"{name}_arguments", None)
    title = "".join(part.title() for part in name.split("_"))
    kinds = several() if several is not None else [getattr(found, f"{title}Arguments")]
    flags = {flag.name: flag for kind in kinds for flag in _flags_of(kind)}
    return [*flags.values(), Flag("--help", "show this help message and exit", False)]


def _flags_of(arguments: Any, default: Any = None) -> Iterator[Flag]:
    """The flags that tyro makes of a dataclass, those of dataclasses in it included."""
    hints = typing.get_type_hints(arguments, include_extras=True)
    for field in dataclasses.fields(arguments):
        hint, marks = hints[field.name], []
        if typing.get_origin(hint) is Annotated:
            hint, *marks = typing.get_args(hint)
        value = getattr(default, field.name, None) if default is not None else _default(field)
        if dataclasses.is_dataclass(hint):
            yield from _flags_of(hint, value)
        elif tyro.conf.Positional not in marks:
            yield _flag(field.name, hint, marks, value)


def _flag(field: str, hint: Any, marks: list[Any], value: Any) -> Flag:
    names = [mark.name for mark in marks if getattr(mark, "name", None)]
    name = names[0] if names else field.replace("_", "-")
    about = next((mark.help for mark in marks if getattr(mark, "help", None)), "")
    if hint is bool:
        return Flag(f"--no-{name}" if value is True else f"--{name}", about, False)
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    options = typing.get_args(hint) if union else (hint,)
    choices = list(CHOICES.get(field, ()))
    for option in options:
        if typing.get_origin(option) is Literal:
            choices += map(str, typing.get_args(option))
        elif option is bool:
            choices += ["True", "False"]
    return Flag(f"--{name}", about, True, tuple(choices), Path in options or field in PATHS)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return None if field.default is dataclasses.MISSING else field.default


def _bash(commands: list[Command]) -> str:
    values, words = [], []
    for command in commands:
        groups: dict[str, list[str]] = {}
        for flag in command.flags:
            if flag.takes_value:
                groups.setdefault(_bash_value(flag), []).append(f"{command.name}:{flag.name}")
        values += [f"        {'|'.join(names)}) {answer};;" for answer, names in groups.items()]
        names = " ".join(flag.name for flag in command.flags)
        words.append(f'        {command.name}) words="{names}";;')
    every = " ".join([*(command.name for command in commands), *MAIN_FLAGS])
    return "\n".join(
        [
            "# bash completion for bighmm",
            '_bighmm_words() { COMPREPLY=($(compgen -W "$1" -- "$cur")); }',
            "_bighmm_files() {",
            "    local IFS=$'\\n'",
            '    COMPREPLY=($(compgen -f -- "$cur"))',
            "    compopt -o filenames 2>/dev/null",
            "    return 0",
            "}",
            "_bighmm() {",
            '    local cur="${COMP_WORDS[COMP_CWORD]}" prev="${COMP_WORDS[COMP_CWORD-1]}" words=""',
            '    if [[ $cur == "=" ]]; then cur=""',
            '    elif [[ $prev == "=" ]]; then prev="${COMP_WORDS[COMP_CWORD-2]}"; fi',
            "    COMPREPLY=()",
            f'    if ((COMP_CWORD == 1)); then _bighmm_words "{every}"; return; fi',
            '    if [[ $prev == "--completion" ]]; then',
            f'        _bighmm_words "{" ".join(SHELLS)}"; return',
            "    fi",
            '    case "${COMP_WORDS[1]}:$prev" in',
            *values,
            "    esac",
            "    if [[ $cur != -* ]]; then _bighmm_files; return; fi",
            '    case "${COMP_WORDS[1]}" in',
            *words,
            "    esac",
            '    _bighmm_words "$words"',
            "}",
            "complete -F _bighmm bighmm",
            "",
        ]
    )


def _bash_value(flag: Flag) -> str:
    if flag.choices:
        return f'_bighmm_words "{" ".join(flag.choices)}"; return'
    return "_bighmm_files; return" if flag.is_path else "return"


def _zsh(commands: list[Command]) -> str:
    cases = []
    for command in commands:
        specs = [_zsh_spec(flag) for flag in command.flags]
        joined = " \\\n                ".join(map(shlex.quote, [*specs, "*: :_files"]))
        cases += [f"        {command.name})", f"            _arguments {joined}", "            ;;"]
    every = [f"{command.name}:{command.about}" for command in commands]
    return "\n".join(
        [
            "#compdef bighmm",
            "_bighmm() {",
            "    if ((CURRENT == 2)); then",
            f"        local -a commands=({' '.join(map(shlex.quote, every))})",
            "        _describe command commands",
            f"        compadd -- {' '.join(MAIN_FLAGS)}",
            "        return",
            "    fi",
            "    local command=$words[2]",
            "    shift words",
            "    ((CURRENT--))",
            "    case $command in",
            f"        --completion) compadd -- {' '.join(SHELLS)};;",
            *cases,
            "    esac",
            "}",
            "compdef _bighmm bighmm",
            "",
        ]
    )


def _zsh_spec(flag: Flag) -> str:
    about = flag.about.replace("[", "(").replace("]", ")").replace(":", " -")
    spec = f"*{flag.name}[{about}]"
    if not flag.takes_value:
        return spec
    if flag.choices:
        return f"{spec}:value:({' '.join(flag.choices)})"
    return f"{spec}:value:{'_files' if flag.is_path else ' '}"


def _fish(commands: list[Command]) -> str:
    lines = ["# fish completion for bighmm", "complete -c bighmm -f"]
    first = "complete -c bighmm -n __fish_use_subcommand"
    lines += [f"{first} -l {name[2:]}" for name in MAIN_FLAGS]
    lines.append(f"{first} -l completion -xa '{' '.join(SHELLS)}'")
    for command in commands:
        lines.append(f"{first} -a {command.name} -d {_fish_quoted(command.about)}")
        begun = f"complete -c bighmm -n '__fish_seen_subcommand_from {command.name}'"
        lines.append(f"{begun} -F")
        for flag in command.flags:
            line = f"{begun} -l {flag.name[2:]}"
            if flag.choices:
                line += f" -xa '{' '.join(flag.choices)}'"
            elif flag.takes_value:
                line += " -rF" if flag.is_path else " -x"
            lines.append(f"{line} -d {_fish_quoted(flag.about)}" if flag.about else line)
    return "\n".join([*lines, ""])


def _fish_quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
