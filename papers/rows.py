"""papers/PAPER/rows.toml: the tables of a paper, row by row, with the figures it printed.

    title = "Who, when, what"
    figure = "valid"                       # or "test": the split of charts and claims
    curves = ["table1"]                    # tables whose validation curves are drawn
    tokenizers = ["web"]                   # corpora that need a tokenizer file
    about_claims = "What is aimed at"      # heading of the claims; without it, what the paper says
    check_normalised = true                # runs of a plan are checked to be normalised

    [[tables]]
    name = "figure3"
    title = "What it shows"
    seeds = [42, 52]                       # seeds of every row; without it, one run with seed 1
    axis = "states"                        # draws a chart over the `x` of the rows; "seconds" over
                                           # the seconds of their runs, without an `x`

    [[tables.rows]]
    row = "VL-HMM 2^15"
    corpus = "ptb"
    recipe = "vl-hmm-32768"                # recipes/vl-hmm-32768.toml; without it, only cited
    paper = { valid = 125.0, params = 11.4e6 }
    range = [124.1, 126.3]                 # lowest and highest figure of several runs
    x = 32768                              # words make bars; without x, a horizontal line
    series = "independent"                 # line of the chart, where there are several
    of = "chiu2020"                        # another paper that has this recipe and its runs
    not_yet = "no text is written yet"     # why it cannot be run; --run leaves it out
    mixture = 4                            # mixes runs of the recipe with seeds 1 … 4 as one HMM
    also = ["vl-hmm-16384"]                # or: mixes its run with those of other recipes

    [[claims]]                             # a statement of the paper (`claims`)
    says = "More states are better"
    if = "vl-hmm-32768 < 0.95 * vl-hmm-16384"

    [[prepare]]                            # a folder that `--run` makes first (`prepare`)
    makes = "labels/random-512"
    corpus = "web"
    command = "distill random --states 512"

    [[plan]]                               # what `--run --planned` makes, in this order
    makes = "runs/PAPER/vl-hmm-32768-ptb"  # a run, or a folder of [[prepare]]
    load = 0.5                             # share of the machine; without it, all of it
    keep = true                            # `--keep` takes its model along

A figure keeps the digits it has in the file: 134 is shown as 134, and 125.0 as 125.0.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from papers.inequality import Inequality, parse

FIGURES = ("params", "train", "valid", "test", "eval_ms")  # figures of a model in a paper

FOLDER, ROWS = "papers", "rows.toml"  # in a checkout: papers/PAPER/rows.toml
SECONDS = "seconds"  # the axis of a chart over the seconds that runs took

Number = int | float


@dataclass(frozen=True)
class Row:
    row: str  # its name in the paper
    corpus: str
    recipe: str | None = None
    paper: dict[str, Number] = field(default_factory=dict)
    range: tuple[Number, Number] | None = None
    x: Number | str | None = None
    series: str = ""
    of: str | None = None
    not_yet: str | None = None
    mixture: int = 0  # of so many runs of its recipe, with seeds 1 … n, if it is one
    also: tuple[str, ...] = ()  # recipes whose runs are mixed with that of its own

    @property
    def known_as(self) -> str:
        """Its name in results and claims: that of its recipe, RECIPE-mixture-N or RECIPE-and-…"""
        name = "-and-".join([self.recipe or "", *self.also])
        return f"{name}-mixture-{self.mixture}" if self.mixture else name

    @property
    def is_mixture(self) -> bool:
        return self.mixture > 0 or bool(self.also)

    @property
    def parts(self) -> list[tuple[Row, int]]:
        """The rows and seeds of the runs that a mixture is of."""
        alone = dataclasses.replace(self, mixture=0, also=())
        if self.mixture:
            return [(alone, seed) for seed in range(1, self.mixture + 1)]
        recipes = (self.recipe, *self.also) if self.also else ()
        return [(dataclasses.replace(alone, recipe=recipe), 1) for recipe in recipes]

    @property
    def can_run(self) -> bool:
        """Whether this paper trains it."""
        return self.recipe is not None and self.of is None and self.not_yet is None

    @property
    def stem(self) -> str:
        """The name of its runs: RECIPE-CORPUS, or RECIPE where that ends in -CORPUS."""
        assert self.recipe is not None, "a row that is only cited has no runs"
        ending = f"-{self.corpus}"
        return self.known_as if self.known_as.endswith(ending) else self.known_as + ending


@dataclass(frozen=True)
class Table:
    name: str
    title: str
    rows: tuple[Row, ...]
    axis: str | None = None
    seeds: tuple[int, ...] = ()


@dataclass(frozen=True)
class Claim:
    """A statement of a paper as an inequality between figures of recipes."""

    says: str
    inequality: Inequality
    figure: str  # compared where a term of the inequality names no figure
    corpus: str | None = None  # needed where a recipe has rows on several corpora


@dataclass(frozen=True)
class Prepare:
    """A folder that recipes refer to: made by a command, or put there by the user."""

    makes: str  # path relative to the checkout
    corpus: str | None = None
    command: str | None = None
    by_hand: str | None = None  # tells the user what to put there


@dataclass(frozen=True)
class Step:
    """A folder that the plan of a paper makes: of a run, or of an entry of [[prepare]]."""

    makes: str  # path relative to the checkout
    load: Number = 1.0  # share of the machine; others run beside it in the rest
    keep: bool = False  # whether `--keep` takes the model along


@dataclass(frozen=True)
class Paper:
    root: Path  # the checkout
    name: str
    title: str
    tables: tuple[Table, ...]
    results_folder: Path
    figure: str = "valid"
    curves: tuple[str, ...] = ()
    tokenizers: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()
    prepare: tuple[Prepare, ...] = ()
    whole: bool = True  # False: only some of its tables or rows
    about_claims: str | None = None
    plan: tuple[Step, ...] = ()
    check_normalised: bool = False  # whether `--planned` checks models of HMMs
    other_results: dict[str, Path] = field(default_factory=dict)  # of papers that rows are of

    @property
    def rows(self) -> list[Row]:
        return [row for table in self.tables for row in table.rows]

    @property
    def runs(self) -> Path:
        return self.root / "runs" / self.name

    def recipe_file(self, row: Row) -> Path:
        return self.root / FOLDER / (row.of or self.name) / "recipes" / f"{row.recipe}.toml"

    def results_file(self, row: Row) -> Path:
        """The file of new results of a row: that of the first table with its recipe and corpus."""
        assert self.whole, "the first table may be one that is left out"
        for table in self.tables:
            if any((r.known_as, r.corpus) == (row.known_as, row.corpus) for r in table.rows):
                return self.results_folder / f"{table.name}.jsonl"
        raise AssertionError(f"{row} is no row of {self.name}")

    def only_table(self, name: str) -> Paper:
        """The paper with one table; ValueError if there is none of that name."""
        chosen = tuple(table for table in self.tables if table.name == name)
        if not chosen:
            known = ", ".join(table.name for table in self.tables)
            raise ValueError(f"{self.name} has no table {name!r}; choose from {known}")
        return self._part(chosen)

    def only_recipes(self, text: str) -> Paper:
        """The paper with the rows whose recipe has a text in its name; ValueError without any."""
        tables = []
        for table in self.tables:
            rows = tuple(row for row in table.rows if row.recipe and text in row.known_as)
            if rows:
                tables.append(dataclasses.replace(table, rows=rows))
        if not tables:
            raise ValueError(f"no recipe of these tables has {text!r} in its name")
        return self._part(tuple(tables))

    def rows_of(self, recipe: str, corpus: str | None) -> list[Row]:
        """The rows with a recipe, on one corpus or on all; a mixture is known as another."""
        return [r for r in self.rows if r.known_as == recipe and corpus in (None, r.corpus)]

    def _part(self, tables: tuple[Table, ...]) -> Paper:
        """The paper with these tables, and the claims that need no other rows."""
        part = dataclasses.replace(self, tables=tables, whole=False)
        claims = tuple(
            claim
            for claim in self.claims
            if all(part.rows_of(name, claim.corpus) for name in claim.inequality.names)
        )
        return dataclasses.replace(part, claims=claims)


def papers_in(root: Path) -> list[str]:
    """The names of the papers in a checkout; ValueError if there are none."""
    found = _names(root)
    if not found:
        raise ValueError(_not_a_checkout(f"{FOLDER}/PAPER/{ROWS}", root))
    return found


def read_paper(root: Path, name: str, results: Path | None = None) -> Paper:
    """A paper of a checkout.

    results: a folder whose subfolder `name` has the results, instead of papers/NAME/results.

    Raises ValueError with one sentence for a mistake in rows.toml.
    """
    path = root / FOLDER / name / ROWS
    if not path.is_file():
        if known := _names(root):
            raise ValueError(f"there is no paper {name!r}; choose from {', '.join(known)}")
        raise ValueError(_not_a_checkout(f"{FOLDER}/{name}/{ROWS}", root))
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    lists = dict.fromkeys(("curves", "tokenizers", "tables", "claims", "prepare", "plan"), list)
    texts = {"title": str, "figure": str}
    kinds = {**texts, **lists, "about_claims": str, "check_normalised": bool}
    _check(found, kinds, ("title", "tables"), str(path))
    figure = found.get("figure", "valid")
    if figure not in ("valid", "test"):
        raise ValueError(f"{path}: figure must be valid or test, not {figure!r}")
    tables = tuple(_table(table, str(path)) for table in found["tables"])
    names = [table.name for table in tables]
    for table_name in names:
        if names.count(table_name) > 1:
            raise ValueError(f"{path} has two tables {table_name!r}; give one another name")
    curves = tuple(found.get("curves", ()))
    for curve in curves:
        if curve not in names:
            raise ValueError(f"{path}: curves names {curve!r}, which is no table of it")

    def results_of(other: str) -> Path:
        return root / FOLDER / other / "results" if results is None else results / other

    others = {row.of for table in tables for row in table.rows if row.of}
    paper = Paper(
        root,
        name,
        found["title"],
        tables,
        results_of(name),
        figure,
        curves,
        tuple(found.get("tokenizers", ())),
        tuple(_claim(claim, figure, str(path)) for claim in found.get("claims", ())),
        tuple(_prepare(entry, str(path)) for entry in found.get("prepare", ())),
        about_claims=found.get("about_claims"),
        plan=tuple(_step(step, str(path)) for step in found.get("plan", ())),
        check_normalised=found.get("check_normalised", False),
        other_results={other: results_of(other) for other in sorted(others)},
    )
    for claim in paper.claims:
        _check_names(paper, claim, str(path))
    for row in paper.rows:
        if row.recipe is not None and not paper.recipe_file(row).is_file():
            raise ValueError(
                f"{path}: the row {row.row!r} has the recipe {row.recipe!r}, but there is no "
                f"{paper.recipe_file(row)}"
            )
        for other in row.also:
            if not paper.rows_of(other, row.corpus):
                raise ValueError(
                    f"{path}: the row {row.row!r} is a mixture with {other!r}, but no row on "
                    f"{row.corpus} has this recipe"
                )
    return paper


def _names(root: Path) -> list[str]:
    return sorted(path.parent.name for path in root.glob(f"{FOLDER}/*/{ROWS}"))


def _table(found: Any, path: str) -> Table:
    name = found.get("name") if isinstance(found, dict) else None
    where = f"{path}, table {name!r}" if name else f"{path}, a table"
    kinds = {"name": str, "title": str, "rows": list, "axis": str, "seeds": list}
    _check(found, kinds, ("name", "title", "rows"), where)
    _check_name(found["name"], "name", where)
    rows = tuple(_row(row, where) for row in found["rows"])
    kinds_of_x = {isinstance(row.x, str) for row in rows if row.x is not None}
    if found.get("axis", SECONDS) != SECONDS and len(kinds_of_x) != 1:
        raise ValueError(
            f"{where}: the rows of a table with an axis need an x, all of them numbers or all words"
        )
    seeds = tuple(found.get("seeds", ()))
    if not all(isinstance(seed, int) and seed >= 0 for seed in seeds):
        raise ValueError(f"{where}: seeds are whole numbers, not {seeds}")
    return Table(found["name"], found["title"], rows, found.get("axis"), seeds)


def _row(found: Any, where: str) -> Row:
    name = found.get("row") if isinstance(found, dict) else None
    where = f"{where}, row {name!r}" if name else f"{where}, a row"
    names = dict.fromkeys(("row", "corpus", "recipe", "series", "of", "not_yet"), str)
    more = {"paper": dict, "range": list, "x": Number | str, "mixture": int, "also": list}
    kinds = {**names, **more}
    _check(found, kinds, ("row", "corpus"), where)
    _check(found.get("paper", {}), dict.fromkeys(FIGURES, Number), (), f"{where}, paper")
    for key in ("corpus", "recipe", "of"):
        if key in found:
            _check_name(found[key], key, where)
    if "of" in found and "recipe" not in found:
        raise ValueError(f"{where} is of {found['of']}, but names no recipe of it")
    if "recipe" not in found and not found.get("paper"):
        raise ValueError(f"{where} has neither a recipe nor a figure of the paper")
    mixed = [key for key in ("mixture", "also") if key in found]
    if found.get("mixture", 2) < 2 or (mixed and "recipe" not in found):
        raise ValueError(f"{where}: a mixture is of two or more runs of a recipe")
    if len(mixed) == 2:
        raise ValueError(f"{where}: a mixture is of several seeds or of several recipes")
    for other in found.get("also", ()):
        _check_name(other, "also", where)
    between = found.get("range", (0, 0))
    if len(between) != 2 or not all(isinstance(end, Number) for end in between):
        raise ValueError(f"{where}: range is the lowest and the highest figure, not {between}")
    tuples = {key: tuple(found[key]) for key in ("range", "also") if key in found}
    return Row(**{**found, **tuples})


def _claim(found: Any, figure: str, path: str) -> Claim:
    says = found.get("says") if isinstance(found, dict) else None
    where = f"{path}, claim {says!r}" if says else f"{path}, a claim"
    kinds = dict.fromkeys(("says", "if", "figure", "corpus"), str)
    _check(found, kinds, ("says", "if"), where)
    try:
        inequality = parse(found["if"])
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
    chosen = found.get("figure", figure)
    for wanted in (chosen, *(term.figure for term in inequality.terms if term.figure)):
        if wanted not in (*FIGURES, "spread", SECONDS):
            known = ", ".join((*FIGURES, "spread", SECONDS))
            raise ValueError(f"{where}: there is no figure {wanted!r}; known are {known}")
    return Claim(found["says"], inequality, chosen, found.get("corpus"))


def _check_names(paper: Paper, claim: Claim, path: str) -> None:
    for name in claim.inequality.names:
        corpora = {row.corpus for row in paper.rows_of(name, claim.corpus)}
        if not corpora:
            raise ValueError(f"{path}, claim {claim.says!r}: no row has the recipe {name!r}")
        if len(corpora) > 1:
            raise ValueError(
                f"{path}, claim {claim.says!r}: {name!r} has rows on "
                f"{' and '.join(sorted(corpora))}; say which corpus is meant"
            )


def _prepare(found: Any, path: str) -> Prepare:
    makes = found.get("makes") if isinstance(found, dict) else None
    where = f"{path}, prepare {makes!r}" if makes else f"{path}, something to prepare"
    kinds = dict.fromkeys(("makes", "corpus", "command", "by_hand"), str)
    _check(found, kinds, ("makes",), where)
    if ("command" in found) == ("by_hand" in found):
        raise ValueError(f"{where} needs a command, or by_hand and a sentence, and not both")
    return Prepare(**found)


def _step(found: Any, path: str) -> Step:
    makes = found.get("makes") if isinstance(found, dict) else None
    where = f"{path}, plan {makes!r}" if makes else f"{path}, a step of the plan"
    _check(found, {"makes": str, "load": Number, "keep": bool}, ("makes",), where)
    if not 0 <= found.get("load", 1) <= 1:
        raise ValueError(f"{where}: load is a share from 0 to 1, not {found['load']}")
    return Step(**found)


def _check_name(value: Any, key: str, where: str) -> None:
    """Names are parts of file names."""
    if not (isinstance(value, str) and re.fullmatch(r"[\w-]+", value)):
        raise ValueError(f"{where}: {key} = {value!r} is not made of letters, digits and dashes")


def _check(found: Any, kinds: dict[str, Any], needed: tuple[str, ...], where: str) -> None:
    if not isinstance(found, dict):
        raise ValueError(f"{where} must be a section with fields, not {found!r}")
    for key, value in found.items():
        if key not in kinds:
            known = ", ".join(kinds)
            raise ValueError(f"{where} has an unknown field {key!r}; known are {known}")
        fits = isinstance(value, kinds[key])
        if not fits or (isinstance(value, bool) and kinds[key] is not bool):
            raise ValueError(f"{where}: {key} = {value!r} is not of the kind that belongs there")
    for key in needed:
        if not found.get(key):
            raise ValueError(f"{where} lacks its {key}")


def _not_a_checkout(file: str, root: Path) -> str:
    return (
        f"there is no {file} in {root.resolve()}; give a checkout of bighmm as --root, or leave it "
        "out"
    )
