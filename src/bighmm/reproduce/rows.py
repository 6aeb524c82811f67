"""recipes/PAPER/rows.toml: a paper's tables, row by row, with the figures it printed.

    title = "Who, when, what"
    curves = ["table1"]                    # tables whose models' curves are drawn, if any

    [[tables]]
    name = "figure3"
    title = "What it shows"
    axis = "states"                        # a chart too, over the `x` of every row

    [[tables.rows]]
    row = "VL-HMM 2^15"
    corpus = "ptb"
    recipe = "vl-hmm-32768"                # recipes/PAPER/vl-hmm-32768.toml; without it: only cited
    paper = { valid = 125.0, params = 11.4e6 }
    x = 32768
    series = "independent"                 # which line of the chart, where there are several

A figure keeps the digits it has in the file: 134 is shown as 134, and 125.0 as 125.0.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FIGURES = ("params", "train", "valid", "test", "eval_ms")  # what a paper may print of a model

Number = int | float


@dataclass(frozen=True)
class Row:
    row: str  # what the paper calls it
    corpus: str
    recipe: str | None = None
    paper: dict[str, Number] = field(default_factory=dict)
    x: Number | None = None
    series: str = ""

    @property
    def stem(self) -> str:
        """What its runs and results are called: RECIPE-CORPUS."""
        assert self.recipe is not None, "a row that is only cited has none"
        ending = f"-{self.corpus}"
        return self.recipe if self.recipe.endswith(ending) else self.recipe + ending


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    rows: tuple[Row, ...]
    axis: str | None = None


@dataclass(frozen=True)
class Paper:
    root: Path  # the checkout
    name: str
    title: str
    tables: tuple[Table, ...]
    results: Path  # the folder of its result files
    curves: tuple[str, ...] = ()

    @property
    def rows(self) -> list[Row]:
        return [row for table in self.tables for row in table.rows]

    @property
    def runs(self) -> Path:
        return self.root / "runs" / self.name

    def recipe_file(self, row: Row) -> Path:
        return self.root / "recipes" / self.name / f"{row.recipe}.toml"

    def only_table(self, name: str) -> Paper:
        chosen = tuple(table for table in self.tables if table.name == name)
        if not chosen:
            known = ", ".join(table.name for table in self.tables)
            raise ValueError(f"{self.name} has no table {name!r}; choose from {known}")
        return dataclasses.replace(self, tables=chosen)

    def only_recipes(self, text: str) -> Paper:
        """The rows whose recipe's name contains a text."""
        tables = []
        for table in self.tables:
            rows = tuple(row for row in table.rows if row.recipe and text in row.recipe)
            if rows:
                tables.append(dataclasses.replace(table, rows=rows))
        if not tables:
            raise ValueError(f"no recipe of these tables has {text!r} in its name")
        return dataclasses.replace(self, tables=tuple(tables))


def papers_in(root: Path) -> list[str]:
    """The papers of a checkout; ValueError if there are none, since it is no checkout then."""
    found = sorted(path.parent.name for path in root.glob("recipes/*/rows.toml"))
    if not found:
        raise ValueError(_not_a_checkout("recipes/PAPER/rows.toml", root))
    return found


def read_paper(root: Path, name: str, results: Path | None = None) -> Paper:
    """A paper of a checkout, with the results that are there or in another folder of results.

    Raises ValueError with one sentence for whatever is wrong in rows.toml.
    """
    path = root / "recipes" / name / "rows.toml"
    if not path.is_file():
        known = ", ".join(sorted(p.parent.name for p in root.glob("recipes/*/rows.toml")))
        if known:
            raise ValueError(f"there is no paper {name!r}; choose from {known}")
        raise ValueError(_not_a_checkout(f"recipes/{name}/rows.toml", root))
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    kinds = {"title": str, "curves": list, "tables": list}
    _check(found, kinds, ("title", "tables"), str(path))
    tables = tuple(_table(table, str(path)) for table in found["tables"])
    names = [table.name for table in tables]
    for table_name in names:
        if names.count(table_name) > 1:
            raise ValueError(f"{path} has two tables {table_name!r}; give one another name")
    curves = tuple(found.get("curves", ()))
    for curve in curves:
        if curve not in names:
            raise ValueError(f"{path}: curves names {curve!r}, which is no table of it")
    folder = (results or root / "results") / name
    paper = Paper(root, name, found["title"], tables, folder, curves)
    for row in paper.rows:
        if row.recipe is not None and not paper.recipe_file(row).is_file():
            raise ValueError(
                f"{path}: the row {row.row!r} has the recipe {row.recipe!r}, but there is no "
                f"{paper.recipe_file(row)}"
            )
    return paper


def _table(found: Any, path: str) -> Table:
    name = found.get("name") if isinstance(found, dict) else None
    where = f"{path}, table {name!r}" if name else f"{path}, a table"
    kinds = {"name": str, "title": str, "rows": list, "axis": str}
    _check(found, kinds, ("name", "title", "rows"), where)
    _check_name(found["name"], "name", where)
    rows = tuple(_row(row, where) for row in found["rows"])
    if "axis" in found and any(row.x is None for row in rows):
        raise ValueError(f"{where}: every row of a table with an axis needs its x")
    return Table(found["name"], found["title"], rows, found.get("axis"))


def _row(found: Any, where: str) -> Row:
    name = found.get("row") if isinstance(found, dict) else None
    where = f"{where}, row {name!r}" if name else f"{where}, a row"
    kinds = {"row": str, "corpus": str, "recipe": str, "paper": dict, "x": Number, "series": str}
    _check(found, kinds, ("row", "corpus"), where)
    _check(found.get("paper", {}), dict.fromkeys(FIGURES, Number), (), f"{where}, paper")
    for key in ("corpus", "recipe"):
        if key in found:
            _check_name(found[key], key, where)
    if "recipe" not in found and not found.get("paper"):
        raise ValueError(f"{where} has neither a recipe nor a figure of the paper")
    return Row(**found)


def _check_name(value: str, key: str, where: str) -> None:
    """Names are parts of file names."""
    if not re.fullmatch(r"[\w-]+", value):
        raise ValueError(f"{where}: {key} = {value!r} is not made of letters, digits and dashes")


def _check(found: Any, kinds: dict[str, Any], needed: tuple[str, ...], where: str) -> None:
    if not isinstance(found, dict):
        raise ValueError(f"{where} must be a section with fields, not {found!r}")
    for key, value in found.items():
        if key not in kinds:
            known = ", ".join(kinds)
            raise ValueError(f"{where} has an unknown field {key!r}; known are {known}")
        if not isinstance(value, kinds[key]) or isinstance(value, bool):
            raise ValueError(f"{where}: {key} = {value!r} is not of the kind that belongs there")
    for key in needed:
        if not found.get(key):
            raise ValueError(f"{where} lacks its {key}")


def _not_a_checkout(file: str, root: Path) -> str:
    return (
        f"there is no {file} in {root.resolve()}; run this in a checkout of bighmm, or give the "
        "checkout as --root"
    )
