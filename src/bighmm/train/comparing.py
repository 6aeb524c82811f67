"""Runs side by side: what differs in their recipes, their figures and their validation curves."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bighmm.base.json_files import read_object
from bighmm.base.settings import is_number
from bighmm.lm.opening import RECIPE
from bighmm.train.logs import read_log
from bighmm.train.recipe import Recipe
from bighmm.train.run import saved_recipe

RESULT = "result.json"


@dataclass(frozen=True)
class RunRecord:
    """What a run was asked for and what became of it."""

    name: str
    recipe: Recipe
    corpus: str  # fingerprint of the training text
    result: dict[str, Any] | None  # None while it is not finished
    curve: list[tuple[float, float]]  # epoch and perplexity of each validation
    epochs: float  # that it has had
    seconds: float  # spent in training

    def figures(self) -> dict[str, Any]:
        """The figures of the run; None for those that are not known yet."""
        result = self.result or {}
        valid, test = result.get("valid", {}), result.get("test", {})
        best = min((perplexity for _, perplexity in self.curve), default=None)
        return {
            "finished": self.result is not None,
            "epochs": self.epochs,
            "seconds": round(self.seconds, 2),
            "parameters": result.get("num_parameters"),
            "valid": valid.get("perplexity", best),
            "test": test.get("perplexity"),
            "unigram_test": test.get("unigram_perplexity"),
            "kneser_ney_test": (result.get("kneser_ney") or {}).get("test"),
        }


def read_run(folder: str | Path) -> RunRecord:
    """The record of a run, finished or not; ValueError if the folder holds none."""
    folder = Path(folder)
    if not (folder / RECIPE).exists():
        raise ValueError(f"{folder} holds no run: it has no {RECIPE}; give the folders of runs")
    recipe, fingerprints = saved_recipe(folder)
    log = read_log(folder)
    result = _read_result(folder / RESULT) if (folder / RESULT).exists() else None
    last = log.steps[-1] if log.steps else {}
    seconds = float(last.get("seconds", (result or {}).get("seconds", 0.0)))
    epochs = float(last.get("epoch", 0.0))
    if result is not None and epochs and epochs + 1e-6 < recipe.training.epochs:
        steps = result.get("steps", 0)  # it was resumed for longer and has not come that far
        result = result if steps == last.get("step") else None
    name, corpus = str(folder), fingerprints["corpus"]
    return RunRecord(name, recipe, corpus, result, log.curve(), epochs, seconds)


def _read_result(path: Path) -> dict[str, Any]:
    """The contents of result.json; ValueError if it has no figures."""
    found = read_object(path)
    numbers = [found.get(name) for name in ("steps", "seconds", "num_parameters")]
    for split in ("valid", "test"):
        of_split = found.get(split)
        names = ("perplexity", "unigram_perplexity")
        numbers += [of_split.get(n) if isinstance(of_split, dict) else None for n in names]
    counted = found.get("kneser_ney")
    if counted is not None:
        numbers.append(counted.get("test") if isinstance(counted, dict) else None)
    if not all(is_number(number) for number in numbers):
        raise ValueError(f"{path} is damaged: it does not have the figures of a run")
    return found


def differing(records: Sequence[RunRecord]) -> dict[str, list[Any]]:
    """The settings that are not the same in all runs, by "section.field", with the value of each.

    A setting that a run's kind of model does not have is None there.
    """
    recipes = [record.recipe.to_dict() for record in records]
    names = {
        f"{section}.{field}": None
        for recipe in recipes
        for section, fields in recipe.items()
        for field in fields
    }
    found = {}
    for name in names:
        section, _, field = name.partition(".")
        values = [recipe[section].get(field) for recipe in recipes]
        if any(value != values[0] for value in values[1:]):
            found[name] = values
    return found


def comparison(folders: Sequence[str | Path]) -> dict[str, Any]:
    """The comparison of runs as JSON values; ValueError for folders without one."""
    records = [read_run(folder) for folder in folders]
    return {
        "version": 1,
        "runs": [
            {"run": r.name, "figures": r.figures(), "curve": [list(point) for point in r.curve]}
            for r in records
        ],
        "differs": differing(records),
        "same_text": len({record.corpus for record in records}) == 1,
    }


def plot_curves(records: Sequence[RunRecord], path: str | Path) -> None:
    """Draw the validation curves of runs into a file.

    Raises ValueError if matplotlib is not installed or cannot write such a file, or if no run has
    been validated yet.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("matplotlib is not installed; install bighmm[plot] or leave out --plot")
    from matplotlib.backend_bases import FigureCanvasBase
    from matplotlib.figure import Figure

    path = Path(path)
    if path.is_dir() or path.suffix[1:].lower() not in FigureCanvasBase.filetypes:
        raise ValueError(f"{path} cannot be a picture; give the name of a .png, .svg or .pdf file")
    if not any(record.curve for record in records):
        raise ValueError("no run has been validated yet, so there is no curve to plot")
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for record in records:
        if record.curve:
            epochs, perplexities = zip(*record.curve, strict=True)
            axes.plot(epochs, perplexities, marker=".", label=record.name.replace("$", r"\$"))
    axes.set_yscale("log")
    axes.set_xlabel("epoch")
    axes.set_ylabel("validation perplexity")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=140)
