"""Our figures of a row, from the files under results/PAPER/.

A row with the recipe R on the corpus C has its first run in R-C.json and those of other seeds in
R-C-seedN.json; where R ends in -C already, C is not said twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bighmm.base.files import read_json
from bighmm.reproduce.rows import Paper, Row

EVAL_BATCH = "eval-batch.json"  # [{"recipe": …, "ms": …}, …]: milliseconds of an evaluation batch


def run_name(row: Row, seed: int) -> str:
    return row.stem if seed == 1 else f"{row.stem}-seed{seed}"


def result_files(paper: Paper, row: Row) -> dict[int, Path]:
    """The result files of a row, by seed."""
    if row.recipe is None:
        return {}
    found = {}
    for path in paper.results.glob(f"{row.stem}*.json"):
        match = re.fullmatch(r"(?:-seed(\d+))?\.json", path.name.removeprefix(row.stem))
        if match:
            found[int(match[1] or 1)] = path
    return dict(sorted(found.items()))


def read_results(paper: Paper, row: Row) -> list[dict[str, Any]]:
    """What the files of a row hold; ValueError where one is not such a file."""
    found = []
    for path in result_files(paper, row).values():
        result = read_json(path)
        if isinstance(result, dict) and "parameters" in result:  # as the first version called it
            result["num_parameters"] = result.pop("parameters")
        try:
            _ = [result[key]["perplexity"] for key in ("valid", "test")]
            _ = [result[key] for key in ("num_parameters", "seconds", "recipe", "valid_curve")]
        except (KeyError, TypeError) as error:
            reason = f": it has no {error}" if isinstance(error, KeyError) else ""
            raise ValueError(f"{path} does not hold the result of a run{reason}") from None
        found.append(result)
    return found


def ours(paper: Paper, row: Row) -> dict[str, Any] | None:
    """Means over the runs of a row, and between which figures they lie; None if there is none."""
    results = read_results(paper, row)
    if not results:
        return None
    figures: dict[str, Any] = {
        "params": results[0]["num_parameters"],
        "valid": _mean(results, lambda result: result["valid"]["perplexity"]),
        "test": _mean(results, lambda result: result["test"]["perplexity"]),
        "runs": len(results),
        "seconds": _mean(results, lambda result: result["seconds"]),
    }
    if with_train := [result for result in results if "train" in result]:
        figures["train"] = _mean(with_train, lambda result: result["train"]["perplexity"])
    milliseconds = _eval_batches(paper).get(str(row.recipe))
    if milliseconds is not None:
        figures["eval_ms"] = milliseconds
    if len(results) > 1:
        figures["spread"] = {}
        for split in ("valid", "test"):
            each = [result[split]["perplexity"] for result in results]
            figures["spread"][split] = [min(each), max(each)]
    return figures


def _mean(results: list[dict[str, Any]], figure: Callable[[dict[str, Any]], float]) -> float:
    return sum(map(figure, results)) / len(results)


def _eval_batches(paper: Paper) -> dict[str, float]:
    """Milliseconds by recipe, if they were measured."""
    path = paper.results / EVAL_BATCH
    if not path.exists():
        return {}
    found = read_json(path)
    if not isinstance(found, list) or not all(_is_batch(entry) for entry in found):
        raise ValueError(f'{path} is not a list of objects with "recipe" and "ms"')
    return {entry["recipe"]: entry["ms"] for entry in found}


def _is_batch(entry: Any) -> bool:
    return isinstance(entry, dict) and {"recipe", "ms"} <= set(entry)
