"""A paper's charts, drawn from the result files; needs the extra `bighmm[plot]`."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

from bighmm.reproduce.results import ours, read_results
from bighmm.reproduce.rows import Paper, Row, Table

COLOURS = ("#1f5fa8", "#d9730d", "#2d8a4e", "#8e44ad", "#b03a2e", "#5d6d7e")


def find_matplotlib() -> None:
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("matplotlib is not installed; install bighmm[plot] or leave out --plots")


def write_plots(paper: Paper, folder: Path) -> list[Path]:
    """TABLE.png of every table with an axis; curves.png if all tables that it needs are there.

    What there is nothing to draw of is left out. Returns what was written.
    """
    find_matplotlib()
    folder.mkdir(parents=True, exist_ok=True)
    charts = {table.name: _chart(paper, table) for table in paper.tables if table.axis}
    charts["curves"] = _curves(paper)
    written = []
    for name, figure in charts.items():
        if figure is not None:
            written.append(folder / f"{name}.png")
            figure.savefig(written[-1], dpi=140)
    return written


def _chart(paper: Paper, table: Table) -> Any:
    """Validation perplexity over the x of the rows: our means and spreads, the paper's points."""
    figure, axes = _new_figure((7, 4.2))
    xs = sorted({row.x for row in table.rows if row.x is not None})
    series = list(dict.fromkeys(row.series for row in table.rows))
    drawn = False
    for colour, name in zip(COLOURS, series, strict=False):
        rows = sorted((row for row in table.rows if row.series == name), key=lambda row: row.x or 0)
        measured = [(row.x, found) for row in rows if (found := ours(paper, row))]
        printed = [(row.x, row.paper["valid"]) for row in rows if "valid" in row.paper]
        if measured:
            line = [x for x, _ in measured], [found["valid"] for _, found in measured]
            axes.plot(*line, marker="o", color=colour, label=_label("ours", name))
        for x, found in measured:
            if "spread" in found:
                axes.vlines(x, *found["spread"]["valid"], color=colour, linewidth=3, alpha=0.4)
        if printed:
            axes.plot(
                *zip(*printed, strict=True),
                linestyle="none",
                marker="D",
                markersize=9,
                fillstyle="none",
                color=colour,
                label=_label("paper", name),
            )
        drawn = drawn or bool(measured or printed)
    if not drawn:
        return None
    axes.set_xscale("log", base=2)
    axes.set_xticks(xs, [f"{x:,}" for x in xs])
    axes.minorticks_off()
    axes.set_xlabel(table.axis)
    _finish(axes, table.title)
    axes.legend(frameon=False, fontsize=9)
    return figure


def _curves(paper: Paper) -> Any:
    """Validation perplexity over epochs, one panel per corpus, a line per run.

    Hidden Markov models have full lines, the others broken ones.
    """
    tables = [table for table in paper.tables if table.name in paper.curves]
    found: dict[str, dict[str, tuple[Row, list[Any]]]] = {}  # by corpus and by name of the runs
    for table in tables:
        for row in table.rows:
            results = [result for result in read_results(paper, row) if result["valid_curve"]]
            if results:
                found.setdefault(row.corpus, {})[row.stem] = (row, results)
    if not found or len(tables) < len(paper.curves):
        return None
    figure, panels = _new_figure((7 * len(found), 4.8), len(found))
    for axes, (corpus, models) in zip(panels, found.items(), strict=True):
        ordered = sorted(models.values(), key=lambda model: -_best(model[1]))
        for number, (row, results) in enumerate(ordered):
            for again, result in enumerate(results):
                axes.plot(
                    *_epochs(result),
                    linestyle="-" if _is_hmm(result) else "--",
                    linewidth=1.6,
                    color=_shade(number, len(ordered)),
                    label=None if again else _powers(row.row),
                )
        axes.set_xscale("log")
        axes.set_yscale("log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(_plain)
        axes.yaxis.set_minor_formatter(_plain)
        axes.set_xlabel("epoch")
        _finish(axes, corpus)
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _epochs(result: dict[str, Any]) -> tuple[list[float], list[float]]:
    per_epoch = result["steps"] / result["recipe"]["training"]["epochs"]
    return (
        [step / per_epoch for step, _ in result["valid_curve"]],
        [perplexity for _, perplexity in result["valid_curve"]],
    )


def _is_hmm(result: dict[str, Any]) -> bool:
    return result["recipe"]["model"].get("family", "hmm") == "hmm"


def _best(results: list[dict[str, Any]]) -> float:
    return min(result["valid"]["perplexity"] for result in results)


def _label(whose: str, series: str) -> str:
    return f"{whose}, {series}" if series else whose


def _powers(text: str) -> str:
    """2^14 as it is written by hand, in the notation of matplotlib."""
    return re.sub(r"(\d)\^(\d+)", r"$\1^{\2}$", text)


def _plain(value: float, _: int) -> str:
    return f"{value:g}"


def _shade(number: int, of: int) -> Any:
    """From light to dark, the best model darkest."""
    from matplotlib import colormaps

    return colormaps["viridis_r"](0.1 + 0.9 * number / max(of - 1, 1))


def _new_figure(size: tuple[float, float], panels: int = 0) -> Any:
    """A figure that belongs to no window; with `panels`, that many axes in a row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    if panels:
        return figure, figure.subplots(1, panels, squeeze=False)[0]
    return figure, figure.subplots()


def _finish(axes: Any, title: str) -> None:
    axes.set_ylabel("validation perplexity")
    axes.set_title(_powers(title), fontsize=11, loc="left")
    axes.grid(alpha=0.25, which="both")
    axes.spines[["top", "right"]].set_visible(False)
