"""The tables and claims of a paper as text, as JSON and as Markdown."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table as Grid

from papers.claims import Judged, judge
from papers.inequality import Values
from papers.results import Results
from papers.rows import FIGURES, Number, Paper, Row, Table

NOTHING = "–"
WORDS = ("model", "corpus", "claim")  # columns that hold no numbers
HEADINGS = {"eval_ms": "ms"}
CLAIMS = "claims"  # the name of the claims in the marks of a document


def as_objects(paper: Paper, results: Results) -> dict[str, Any]:
    """All rows and claims, ready for JSON.

    A row has the figures of the paper, ours (None without a run) and the files with our runs. The
    sides of a claim's inequality are None where a figure is missing.
    """
    rows = []
    for table in paper.tables:
        for row in table.rows:
            rows.append(
                {
                    "table": table.name,
                    "row": row.row,
                    "corpus": row.corpus,
                    "recipe": row.known_as or None,
                    "paper": row.paper,
                    "ours": results.figures(row),
                    "results": [_from(paper.root, path) for path in results.files(row)],
                }
            )
    claims = [_claim_object(judge(paper, results, claim)) for claim in paper.claims]
    return {"rows": rows, "claims": claims}


def heading_of(table: Table) -> str:
    """'Table 1: …' for the table with the name table1."""
    name = re.sub(r"(?<=[a-z])(?=\d)", " ", table.name).capitalize()
    return f"{name}: {table.title}"


def as_grid(paper: Paper, results: Results, table: Table) -> Grid:
    """A table for the terminal."""
    return _grid(_columns(paper, results, table))


def as_markdown(paper: Paper, results: Results, table: Table) -> str:
    """A table with its heading, as Markdown."""
    return f"**{heading_of(table)}**\n\n{_markdown(_columns(paper, results, table))}"


def claims_as_grid(paper: Paper, results: Results) -> Grid:
    """The claims for the terminal."""
    return _grid(_claim_columns(paper, results))


def claims_as_markdown(paper: Paper, results: Results) -> str:
    """The claims with a heading, as Markdown."""
    heading = paper.about_claims or "What the paper says, and whether it is so here"
    return f"**{heading}**\n\n{_markdown(_claim_columns(paper, results))}"


def check_marks(paper: Paper, path: Path) -> None:
    """Raises ValueError unless the document has the marks of every table."""
    _replaced(paper, path, dict.fromkeys(places_of(paper), ""))


def write_docs(paper: Paper, results: Results, path: Path) -> None:
    """Write every table into a document between its marks, and the claims of a whole paper.

    The marks are <!-- begin PAPER/TABLE --> and <!-- end PAPER/TABLE -->, each on its own line.
    """
    texts = [as_markdown(paper, results, table) for table in paper.tables]
    if CLAIMS in places_of(paper):
        texts.append(claims_as_markdown(paper, results))
    contents = dict(zip(places_of(paper), texts, strict=True))
    path.write_text(_replaced(paper, path, contents), encoding="utf-8")


def places_of(paper: Paper) -> list[str]:
    """The names in the marks of a document: the tables, and claims for a whole paper."""
    claims = [CLAIMS] if paper.whole and paper.claims else []
    return [table.name for table in paper.tables] + claims


def _replaced(paper: Paper, path: Path, contents: dict[str, str]) -> str:
    if not path.is_file():
        raise ValueError(f"there is no document {path} to write the tables to")
    text = path.read_text(encoding="utf-8")
    for place, content in contents.items():
        name = f"{paper.name}/{place}"
        begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
        before, found, rest = text.partition(begin)
        _, found_end, after = rest.partition(end)
        if not (found and found_end):
            raise ValueError(f"{path} lacks the mark {end if found else begin} of {name}")
        text = f"{before}{begin}\n{content}{end}{after}"
    return text


def _grid(columns: list[list[str]]) -> Grid:
    grid = Grid(box=None, padding=(0, 1, 0, 0), header_style="dim")
    for heading, *_ in columns:
        two_lines = heading.replace(", ", "\n")
        grid.add_column(two_lines, justify="left" if heading in WORDS else "right")
    for row in list(zip(*columns, strict=True))[1:]:
        grid.add_row(*map(escape, row))
    return grid


def _markdown(columns: list[list[str]]) -> str:
    lines = list(zip(*columns, strict=True))
    lines.insert(1, tuple("---" if heading in WORDS else "---:" for heading in lines[0]))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _claim_columns(paper: Paper, results: Results) -> list[list[str]]:
    found = [judge(paper, results, claim) for claim in paper.claims]

    def written(judged: Judged, values: Values) -> str:
        nothing = all(value is None for value in values)
        return NOTHING if nothing else judged.claim.inequality.written(values)

    return [
        ["claim", *(judged.claim.says for judged in found)],
        ["paper", *(written(judged, judged.paper) for judged in found)],
        ["ours", *(written(judged, judged.ours) for judged in found)],
        ["here it", *(judged.verdict for judged in found)],
    ]


def _claim_object(judged: Judged) -> dict[str, Any]:
    return {
        "says": judged.claim.says,
        "if": judged.claim.inequality.text,
        "figure": judged.claim.figure,
        "paper": judged.paper,
        "ours": judged.ours,
        "verdict": judged.verdict,
    }


def _from(root: Path, path: Path) -> str:
    """A path relative to the checkout."""
    return Path(os.path.relpath(path, root)).as_posix()


def _columns(paper: Paper, results: Results, table: Table) -> list[list[str]]:
    """The columns of a table, heading first: figures of the paper, each with ours beside it."""
    found = [results.figures(row) for row in table.rows]
    columns = [["model", *map(_name, table.rows)]]
    if len({row.corpus for row in table.rows}) > 1:
        columns.append(["corpus", *(row.corpus for row in table.rows)])
    printed = {key for row in table.rows for key in row.paper} | {paper.figure}
    for key in (key for key in FIGURES if key in printed):
        heading = HEADINGS.get(key, key)
        texts = [_printed(row, key, with_range=key == paper.figure) for row in table.rows]
        columns.append([f"{heading}, paper", *texts])
        columns.append([f"{heading}, ours", *(_measured(figures, key) for figures in found)])
    for key in ("runs", "seconds"):
        columns.append([key, *(_measured(figures, key) for figures in found)])
    return columns


def _name(row: Row) -> str:
    if row.recipe is None:
        return f"{row.row} (cited)"
    return f"{row.row} (not yet)" if row.not_yet else row.row


def _printed(row: Row, key: str, with_range: bool) -> str:
    """A figure of the paper, with the digits that it has there."""
    value: Number | None = row.paper.get(key)
    if value is None:
        return NOTHING
    if row.range is not None and with_range:
        return f"{value} ({row.range[0]}–{row.range[1]})"
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
