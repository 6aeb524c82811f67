"""Tables of flags and recipe fields, and SECURITY.md, put into pages when the site is built."""

from __future__ import annotations

from pathlib import Path

from bighmm.cli.flags import Flag, commands_with_flags, flags_of
from bighmm.cli.main import COMMANDS
from bighmm.lm.options import OPTIONS as BASELINE_OPTIONS
from bighmm.model.options import OPTIONS as PARAMETERISATION_OPTIONS
from bighmm.train.recipe import SECTIONS

HEAD = ["| flag | value | default | |", "|---|---|---|---|"]


def on_page_markdown(markdown: str, page, config, files) -> str:
    """Put the tables in place of their marks; mkdocs calls this for every page."""
    if "<!-- commands -->" in markdown:
        markdown = markdown.replace("<!-- commands -->", _commands())
    if "<!-- security -->" in markdown:
        text = (Path(__file__).parent.parent / "SECURITY.md").read_text(encoding="utf-8")
        markdown = markdown.replace("<!-- security -->", text.partition("\n")[2])
    if "<!-- recipe -->" in markdown:
        markdown = markdown.replace("<!-- recipe -->", _recipe())
    return markdown


def _commands() -> str:
    parts = []
    for command in commands_with_flags(COMMANDS):
        rows = [_row(flag.name, flag) for flag in command.flags if flag.name != "--help"]
        about = command.about[0].upper() + command.about[1:]
        parts += [f"## {command.name}", f"{about}.", "\n".join([*HEAD, *rows])]
    return "\n\n".join(parts)


def _recipe() -> str:
    parts = []
    for name, section in SECTIONS.items():
        parts += [f"## [{name}]", _fields(section)]
    parts += ["## [options]", "They depend on the parameterisation, or on the baseline."]
    for name in ("neural", "scalar"):
        text = "; others differ in defaults" if name == "neural" else ""
        parts += [f"### parameterisation {name}{text}", _fields(PARAMETERISATION_OPTIONS[name])]
    for name, options in BASELINE_OPTIONS.items():
        parts += [f"### family {name}", _fields(options)]
    return "\n\n".join(parts)


def _fields(section: type) -> str:
    rows = [
        _row(flag.name.removeprefix("--no-").removeprefix("--").replace("-", "_"), flag)
        for flag in flags_of(section)
    ]
    return "\n".join(["| field | value | default | |", *HEAD[1:], *rows])


def _row(name: str, flag: Flag) -> str:
    about = flag.about.removeprefix("Turns this off: ") if "--" not in name else flag.about
    value = " ".join(f"`{choice}`" for choice in flag.choices)
    default = "" if flag.default in (None, "", ()) else f"`{flag.default}`"
    cells = [f"`{name}`", value, default, about]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
