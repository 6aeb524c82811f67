"""Tables of flags, recipe fields and figures, and SECURITY.md, put into pages of the site."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

from bighmm.answers.objects import Perplexity
from bighmm.answers.questions import QUESTIONS
from bighmm.answers.schemas import keys_of, objects_in, schema_of, type_name
from bighmm.base.docstrings import field_docstrings
from bighmm.cli.flags import Flag, commands_with_flags, flags_of
from bighmm.cli.main import COMMANDS
from bighmm.lm.options import OPTIONS as BASELINE_OPTIONS
from bighmm.lm.rules.asked import AskedRule
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
    if "<!-- objects -->" in markdown:
        markdown = markdown.replace("<!-- objects -->", _objects())
    if "<!-- defaults -->" in markdown:
        markdown = markdown.replace("<!-- defaults -->", _defaults())
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


def _defaults() -> str:
    """The table of what default settings give on texts of several sizes."""
    path = Path(__file__).parent.parent / "results" / "cpu" / "defaults.json"
    if not path.exists():
        return "Not measured yet."
    lines = [
        "| text | states, blocks | epochs | processor time | valid / test | Kneser-Ney | unigram |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in json.loads(path.read_text(encoding="utf-8"))["rows"]:
        size, chosen = row["kilobytes"], row["chosen"]
        text = f"{size:,} kB" if size < 1000 else f"{size / 1000:g} MB"
        seconds = row["processor_seconds"]
        time = f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"
        pairs = [
            f"{row['valid'][name]:.1f} / {row['test'][name]:.1f}"
            for name in ("perplexity", "unigram_perplexity")
        ]
        counted = row["kneser_ney"]
        pairs.insert(1, f"{counted['valid']:.1f} / {counted['test']:.1f}")
        states = f"{chosen['model.states']:,}, {chosen['model.blocks']:,}"
        cells = [text, states, f"{row['epochs']:.2g}", time, *pairs]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


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


def _objects() -> str:
    """A table for every object that answers a question, with the objects in it; and for rules."""
    answered = {name: question.answer for name, question in QUESTIONS.items()}
    parts = []
    for name, answer in {**answered, "eval": Perplexity}.items():
        for number, each in enumerate(objects_in(answer)):
            about = inspect.getdoc(each) or ""
            title = f"## {name}" if number == 0 else f"### {name}: {each.__name__}"
            rows = [
                _cells(
                    f"`{key.name}`" + ("" if key.required else " (not always)"),
                    type_name(key.hint),
                    key.about,
                )
                for key in keys_of(each)
            ]
            parts += [title, about, "\n".join(["| key | value | |", "|---|---|---|", *rows])]
    texts, schema = field_docstrings(AskedRule), schema_of(AskedRule)["properties"]
    rows = [_cells(f"`{name}`", _kind(schema[name]), texts[name]) for name in schema]
    parts += ["## Rules in requests", "\n".join(["| key | value | |", "|---|---|---|", *rows])]
    return "\n\n".join(parts)


def _kind(schema: dict[str, Any]) -> str:
    found = schema.get("type") or [option["type"] for option in schema["anyOf"]]
    return found if isinstance(found, str) else " or ".join(found)


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
    return _cells(f"`{name}`", value, default, about)


def _cells(*cells: str) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
