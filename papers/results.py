"""Our figures of the rows of a paper, from its files TABLE.jsonl.

Each line is one run, a JSON object:

    recipe, corpus, seed    which run it is; recipe is the name of a file in PAPER/recipes/, or
                            RECIPE-mixture-N for a mixture of N of its runs, or
                            RECIPE-and-RECIPE for one of runs of several
    settings                every setting of that recipe as it was trained
    …                       what was measured, as `record` makes it

A run is stored once, in the file of the first table that has a row with its recipe and corpus. All
tables find it there, and so do rows of other papers.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from bighmm.base.files import write_atomically
from bighmm.base.json_files import read_json
from bighmm.base.locks import locked_folder
from papers.rows import Paper, Row

EVAL_BATCH = "eval-batch.json"  # [{"recipe": …, "ms": …}, …]: milliseconds of an evaluation batch


class RunKey(NamedTuple):
    recipe: str
    corpus: str
    seed: int


@dataclass(frozen=True)
class StoredRun:
    file: Path
    line: int  # counted from 0
    fields: dict[str, Any]


@dataclass(frozen=True)
class Results:
    """The stored runs of a paper, and milliseconds of an evaluation batch by recipe."""

    runs: dict[RunKey, StoredRun] = field(default_factory=dict)
    eval_ms: dict[str, float] = field(default_factory=dict)
    others: dict[str, Results] = field(default_factory=dict)  # of papers that rows are of

    def of(self, row: Row) -> dict[int, StoredRun]:
        """The runs of a row by seed, the smallest seed first."""
        if row.of is not None:
            return self.others[row.of].of(dataclasses.replace(row, of=None))
        found = {
            key.seed: run
            for key, run in self.runs.items()
            if (key.recipe, key.corpus) == (row.known_as, row.corpus)
        }
        return dict(sorted(found.items()))

    def files(self, row: Row) -> list[Path]:
        """The files that hold the runs of a row."""
        return sorted({run.file for run in self.of(row).values()})

    def figures(self, row: Row) -> dict[str, Any] | None:
        """Means over the runs of a row, with the lowest and highest; None if it has no run."""
        if row.of is not None:
            return self.others[row.of].figures(dataclasses.replace(row, of=None))
        runs = [run.fields for run in self.of(row).values()]
        if not runs:
            return None
        figures: dict[str, Any] = {
            "params": runs[0]["num_parameters"],
            "valid": _mean(runs, lambda run: run["valid"]["perplexity"]),
            "test": _mean(runs, lambda run: run["test"]["perplexity"]),
            "runs": len(runs),
            "seconds": _mean(runs, lambda run: run["seconds"]),
        }
        if with_train := [run for run in runs if "train" in run]:
            figures["train"] = _mean(with_train, lambda run: run["train"]["perplexity"])
        if row.recipe in self.eval_ms:
            figures["eval_ms"] = self.eval_ms[row.recipe]
        if len(runs) > 1:
            figures["spread"] = {}
            for split in ("valid", "test"):
                each = [run[split]["perplexity"] for run in runs]
                figures["spread"][split] = [min(each), max(each)]
        return figures


def run_name(row: Row, seed: int) -> str:
    """The name of a run's folder in runs/PAPER/: RECIPE-CORPUS, with -seedN unless N is 1."""
    return row.stem if seed == 1 else f"{row.stem}-seed{seed}"


def read_results(paper: Paper) -> Results:
    """Everything that is stored of a paper.

    Raises ValueError for a line that is not a run, and for a run that is stored twice.
    """
    others = {name: read_folder(folder) for name, folder in paper.other_results.items()}
    return dataclasses.replace(read_folder(paper.results_folder), others=others)


def read_folder(folder: Path) -> Results:
    """What the files of one folder hold; ValueError as of `read_results`."""
    runs: dict[RunKey, StoredRun] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(path.read_bytes().splitlines()):
            if not line.strip():
                continue
            where = f"{path}, line {number + 1}"
            fields = _parse(line, where)
            key = RunKey(fields["recipe"], fields["corpus"], fields["seed"])
            if key in runs:
                other = f"{runs[key].file}, line {runs[key].line + 1}"
                raise ValueError(f"{where} is a run that {other} has already; remove one of them")
            runs[key] = StoredRun(path, number, fields)
    return Results(runs, _eval_batches(folder))


def store_result(paper: Paper, row: Row, seed: int, record: dict[str, Any]) -> Path:
    """Store what `record_of` made of a run and return the file.

    An earlier result of the same run is replaced. Threads and processes may store at the same time,
    and a process that is killed leaves the file as it was or with the new line.
    """
    assert row.recipe is not None, "a row that is only cited has no run"
    key = RunKey(row.known_as, row.corpus, seed)
    measured = {name: value for name, value in record.items() if name != "recipe"}
    fields = {**key._asdict(), "settings": record["recipe"], **measured}
    paper.results_folder.mkdir(parents=True, exist_ok=True)
    with locked_folder(paper.results_folder, wait=True):
        before = read_results(paper).runs.get(key)
        path = before.file if before else paper.results_file(row)
        lines = path.read_bytes().splitlines() if path.exists() else []
        new = json.dumps(fields, ensure_ascii=False).encode()
        if before:
            lines[before.line] = new
        else:
            lines.append(new)
        write_atomically(path, b"".join(line + b"\n" for line in lines))
    return path


def _parse(line: bytes, where: str) -> dict[str, Any]:
    """The fields of a run; ValueError where they are not those of one."""
    try:
        found = json.loads(line)
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{where} is damaged: {error}") from None
    if isinstance(found, dict) and "parameters" in found:  # as the first version called it
        found["num_parameters"] = found.pop("parameters")
    try:
        _ = [found[split]["perplexity"] for split in ("valid", "test")]
        needed = ("recipe", "corpus", "seed", "settings", "num_parameters", "seconds")
        _ = [found[name] for name in (*needed, "valid_curve")]
    except (KeyError, TypeError) as error:
        reason = f": it has no {error}" if isinstance(error, KeyError) else ""
        raise ValueError(f"{where} does not hold the result of a run{reason}") from None
    for name, kind in (("recipe", str), ("corpus", str), ("seed", int)):
        if not isinstance(found[name], kind):
            raise ValueError(f"{where}: {name} = {found[name]!r} does not name a run")
    return found


def _mean(runs: list[dict[str, Any]], figure: Callable[[dict[str, Any]], float]) -> float:
    return sum(map(figure, runs)) / len(runs)


def _eval_batches(folder: Path) -> dict[str, float]:
    """Milliseconds by recipe; empty if they were not measured."""
    path = folder / EVAL_BATCH
    if not path.exists():
        return {}
    found = read_json(path)
    if not isinstance(found, list) or not all(_is_batch(entry) for entry in found):
        raise ValueError(f'{path} is not a list of objects with "recipe" and "ms"')
    return {entry["recipe"]: entry["ms"] for entry in found}


def _is_batch(entry: Any) -> bool:
    return isinstance(entry, dict) and {"recipe", "ms"} <= set(entry)
