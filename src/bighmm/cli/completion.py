"""Shell completion: scripts for bash, zsh and fish, made from the commands' flags.

The scripts are plain text and do not start Python when a user presses the tab key.
"""

from __future__ import annotations

import shlex

from bighmm.cli.flags import Command, Flag, commands_with_flags

SHELLS = ("bash", "zsh", "fish")
MAIN_FLAGS = ("--help", "--version", "--completion")


def completion_script(shell: str, commands: dict[str, tuple[str, str]]) -> str:
    """The script for a shell; `commands` have their module and a line about them.

    Raises ValueError for a shell that is not known.
    """
    writers = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    if shell not in writers:
        raise ValueError(f"there is no completion for {shell!r}; choose from {', '.join(SHELLS)}")
    return writers[shell](commands_with_flags(commands))


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
