"""The tables of a paper for people, for programs and for documents."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table as Grid

from bighmm.reproduce.results import ours, result_files
from bighmm.reproduce.rows import FIGURES, Number, Paper, Row, Table

NOTHING = "–"
WORDS = ("model", "corpus")  # columns that hold no numbers
HEADINGS = {"eval_ms": "ms"}


def as_objects(paper: Paper) -> dict[str, Any]:
    """All rows with the paper's figures, ours (None if there are none), and the files of ours."""
    rows = []
    for table in paper.tables:
        for row in table.rows:
            files = result_files(paper, row).values()
            rows.append(
                {
                    "table": table.name,
                    "row": row.row,
                    "corpus": row.corpus,
                    "recipe": row.recipe,
                    "paper": row.paper,
                    "ours": ours(paper, row),
                    "results": [_from(paper.root, path) for path in files],
                }
            )
    return {"rows": rows}


def heading_of(table: Table) -> str:
    """'Table 1: …' for the table with the name table1."""
    name = re.sub(r"(?<=[a-z])(?=\d)", " ", table.name).capitalize()
    return f"{name}: {table.title}"


def as_grid(paper: Paper, table: Table) -> Grid:
    """A table to be printed on a terminal."""
    columns = _columns(paper, table)
    grid = Grid(box=None, padding=(0, 1, 0, 0), header_style="dim")
    for heading, *_ in columns:
        two_lines = heading.replace(", ", "\n")
        grid.add_column(two_lines, justify="left" if heading in WORDS else "right")
    for row in list(zip(*columns, strict=True))[1:]:
        grid.add_row(*map(escape, row))
    return grid


def as_markdown(paper: Paper, table: Table) -> str:
    columns = _columns(paper, table)
    lines = list(zip(*columns, strict=True))
    lines.insert(1, tuple("---" if heading in WORDS else "---:" for heading in lines[0]))
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"**{heading_of(table)}**\n\n{text}\n"


def check_marks(paper: Paper, path: Path) -> None:
    """ValueError unless the document has a place for every table."""
    _replaced(paper, path, lambda table: "")


def write_docs(paper: Paper, path: Path) -> None:
    """Put every table between its marks in a document.

    <!-- begin PAPER/TABLE --> and <!-- end PAPER/TABLE -->, each on a line of its own.
    """
    text = _replaced(paper, path, lambda table: as_markdown(paper, table))
    path.write_text(text, encoding="utf-8")


def _replaced(paper: Paper, path: Path, content: Any) -> str:
    if not path.is_file():
        raise ValueError(f"there is no document {path} to write the tables to")
    text = path.read_text(encoding="utf-8")
    for table in paper.tables:
        name = f"{paper.name}/{table.name}"
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        before, found, rest = text.partition(begin)
        _, found_end, after = rest.partition(end)
        if not (found and found_end):
            raise ValueError(f"{path} lacks the mark {end if found else begin} of {name}")
        text = f"{before}{begin}\n{content(table)}{end}{after}"
    return text


def _from(root: Path, path: Path) -> str:
    """A path as seen from the checkout."""
    return Path(os.path.relpath(path, root)).as_posix()


def _columns(paper: Paper, table: Table) -> list[list[str]]:
    """Each with its heading first: what the paper printed in this table, and ours beside it."""
    found = [ours(paper, row) for row in table.rows]
    columns = [["model", *(row.row if row.recipe else f"{row.row} (cited)" for row in table.rows)]]
    if len({row.corpus for row in table.rows}) > 1:
        columns.append(["corpus", *(row.corpus for row in table.rows)])
    for key in [key for key in FIGURES if any(key in row.paper for row in table.rows)] or ["valid"]:
        heading = HEADINGS.get(key, key)
        columns.append([f"{heading}, paper", *(_printed(row, key) for row in table.rows)])
        columns.append([f"{heading}, ours", *(_measured(figures, key) for figures in found)])
    for key in ("runs", "seconds"):
        columns.append([key, *(_measured(figures, key) for figures in found)])
    return columns


def _printed(row: Row, key: str) -> str:
    """A figure of the paper, with the digits it has there."""
    value: Number | None = row.paper.get(key)
    if value is None:
        return NOTHING
    return f"{value / 1e6:g}M" if key == "params" else str(value)


def _measured(found: dict[str, Any] | None, key: str) -> str:
    if found is None or key not in found:
        return NOTHING
    value = found[key]
    if key == "params":
        return f"{value / 1e6:.1f}M"
    if key == "runs" or (key == "seconds" and value >= 10):
        return f"{value:,.0f}"
    spread = found.get("spread", {}).get(key)
    return f"{value:.1f}" + (f" ({spread[0]:.1f}–{spread[1]:.1f})" if spread else "")
