"""The charts of a paper, drawn from stored results; needs the extra `bighmm[plot]`."""

from __future__ import annotations

import importlib.util
import math
import re
from pathlib import Path
from typing import Any

from papers.results import Results
from papers.rows import SECONDS, Paper, Row, Table

SHORTEST = 0.01  # seconds; stands for less, which a logarithmic axis has no place for
BARS = 0.8  # width of all bars at one word, in units of the axis
COLOURS = (
    "#1f5fa8",
    "#d9730d",
    "#2d8a4e",
    "#8e44ad",
    "#b03a2e",
    "#5d6d7e",
    "#17a2a2",
    "#c79a00",
    "#d1579b",
)


def find_matplotlib() -> None:
    """Raises ValueError if matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("matplotlib is not installed; install bighmm[plot] or leave out --plots")


def write_plots(paper: Paper, results: Results, folder: Path) -> list[Path]:
    """Draw TABLE.png of every table with an axis and curves.png, and return the written files.

    A chart without any figure is left out, and so are curves unless all their tables are chosen.
    """
    find_matplotlib()
    folder.mkdir(parents=True, exist_ok=True)
    charts = {}
    for table in paper.tables:
        if table.axis is not None:
            draw = _over_seconds if table.axis == SECONDS else _chart
            charts[table.name] = draw(paper, results, table)
    charts["curves"] = _curves(paper, results)
    written = []
    for name, figure in charts.items():
        if figure is not None:
            written.append(folder / f"{name}.png")
            figure.savefig(written[-1], dpi=140)
    return written


def _chart(paper: Paper, results: Results, table: Table) -> Any:
    """A figure of perplexity over x, with our means and spreads and the paper's points, or None.

    Each series is a line where x is a number, and bars where it is a word. A row without x is a
    horizontal line.
    """
    figure, axes = _new_figure((7, 4.2))
    placed = [row for row in table.rows if row.x is not None]
    xs: list[Any] = list(dict.fromkeys(row.x for row in placed))
    words = isinstance(xs[0], str)
    series = list(dict.fromkeys(row.series for row in placed))
    drawn = False
    for number, name in enumerate(series):
        rows = [row for row in placed if row.series == name]
        # Bars stand side by side around the place of their word.
        shift = (number - (len(series) - 1) / 2) * BARS / len(series) if words else 0.0
        places = [xs.index(row.x) + shift if words else row.x for row in rows]
        colour = _colour(series, name)
        drawn |= _series(axes, paper, results, rows, places, name, colour, BARS / len(series))
    for number, row in enumerate(row for row in table.rows if row.x is None):
        if found := results.figures(row):
            grey, style = ("0.2", "--") if number % 2 == 0 else ("0.55", ":")
            label = f"ours, {row.row}"
            axes.axhline(found[paper.figure], color=grey, linestyle=style, label=label)
            drawn = True
    if not drawn:
        return None
    if words:
        axes.set_xticks(range(len(xs)), xs)
        axes.margins(y=0.3)  # room for the legend above the bars
    else:
        axes.set_xscale("log", base=2)
        marked = _marked(sorted(xs))
        axes.set_xticks(marked, _ticks(marked))
    axes.minorticks_off()
    axes.set_xlabel(table.axis)
    _finish(axes, table.title, paper.figure)
    axes.legend(frameon=False, fontsize=9)
    return figure


def _series(
    axes: Any,
    paper: Paper,
    results: Results,
    rows: list[Row],
    places: list[Any],
    name: str,
    colour: str,
    width: float,
) -> bool:
    """Draw one series; whether it has any figure."""
    both = sorted(zip(places, rows, strict=True), key=lambda pair: pair[0])
    measured = [(x, found) for x, row in both if (found := results.figures(row))]
    printed = [(x, row.paper[paper.figure]) for x, row in both if paper.figure in row.paper]
    if measured:
        line = [x for x, _ in measured], [found[paper.figure] for _, found in measured]
        if isinstance(rows[0].x, str):
            axes.bar(*line, width=0.9 * width, color=colour, alpha=0.75, label=_label("ours", name))
        else:
            axes.plot(*line, marker="o", color=colour, label=_label("ours", name))
    for x, found in measured:
        if "spread" in found:
            ends = found["spread"][paper.figure]
            axes.vlines(x, *ends, color=colour, linewidth=3, alpha=0.4)
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
    return bool(measured or printed)


def _over_seconds(paper: Paper, results: Results, table: Table) -> Any:
    """A figure of perplexity over seconds of training, or None: a point per row, with its name."""
    figure, axes = _new_figure((7, 4.2))
    measured = [(row, found) for row in table.rows if (found := results.figures(row))]
    if not measured:
        return None
    measured.sort(key=lambda pair: pair[1]["seconds"])
    series = list(dict.fromkeys(row.series for row in table.rows))
    for number, (row, found) in enumerate(measured):
        seconds = max(found["seconds"], SHORTEST)
        point, colour = (seconds, found[paper.figure]), _colour(series, row.series)
        axes.plot(*point, marker="o", color=colour)
        # Names of neighbours stand above and below.
        shift = {"xytext": (4, 4 if number % 2 == 0 else -10), "textcoords": "offset points"}
        axes.annotate(_powers(row.row), point, color=colour, fontsize=7, **shift)
    for name in (name for name in series if any(row.series == name for row, _ in measured)):
        colour = _colour(series, name)
        axes.plot([], [], linestyle="none", marker="o", color=colour, label=_label("ours", name))
    axes.set_xscale("log")
    axes.margins(x=0.15)  # room for the names
    axes.xaxis.set_major_formatter(_plain)
    axes.set_xlabel(f"{table.axis} of training")
    _finish(axes, table.title, paper.figure)
    axes.legend(frameon=False, fontsize=9)
    return figure


def _curves(paper: Paper, results: Results) -> Any:
    """A figure of validation perplexity over epochs, or None: a panel per corpus, a line per run.

    Lines of hidden Markov models are solid, those of other models dashed.
    """
    tables = [table for table in paper.tables if table.name in paper.curves]
    found: dict[str, dict[str, tuple[Row, list[Any]]]] = {}  # by corpus and by name of its runs
    for table in tables:
        for row in table.rows:
            runs = [run.fields for run in results.of(row).values() if run.fields["valid_curve"]]
            if runs:
                found.setdefault(row.corpus, {})[row.stem] = (row, runs)
    if not found or len(tables) < len(paper.curves):
        return None
    figure, panels = _new_figure((7 * len(found), 4.8), len(found))
    for axes, (corpus, models) in zip(panels, found.items(), strict=True):
        ordered = sorted(models.values(), key=lambda model: -_best(model[1]))
        for number, (row, runs) in enumerate(ordered):
            for again, run in enumerate(runs):
                axes.plot(
                    *_epochs(run),
                    linestyle="-" if _is_hmm(run) else "--",
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
        _finish(axes, corpus, "valid")
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def _epochs(run: dict[str, Any]) -> tuple[list[float], list[float]]:
    """The validation curve of a run: epochs, and perplexities."""
    per_epoch = run["steps"] / run["settings"]["training"]["epochs"]
    return (
        [step / per_epoch for step, _ in run["valid_curve"]],
        [perplexity for _, perplexity in run["valid_curve"]],
    )


def _is_hmm(run: dict[str, Any]) -> bool:
    return run["settings"]["model"].get("family", "hmm") == "hmm"


def _best(runs: list[dict[str, Any]]) -> float:
    return min(run["valid"]["perplexity"] for run in runs)


def _colour(series: list[str], name: str) -> str:
    return COLOURS[series.index(name) % len(COLOURS)]


def _label(whose: str, series: str) -> str:
    return f"{whose}, {series}" if series else whose


def _powers(text: str) -> str:
    """Text in which 2^14 is written in matplotlib's notation for powers."""
    return re.sub(r"(\d)\^(\d+)", r"$\1^{\2}$", text)


def _marked(xs: list[Any]) -> list[Any]:
    """The powers of two among numbers where there are three or more, as others would stand in
    between; else all."""
    powers = [x for x in xs if math.log2(x).is_integer()]
    return powers if len(powers) >= 3 else xs


def _ticks(xs: list[Any]) -> list[str]:
    """Labels of numbers; large powers of two are written as powers."""
    powers = [math.log2(x) for x in xs]
    if xs[-1] > 1 << 17 and all(power.is_integer() for power in powers):
        return [f"$2^{{{power:.0f}}}$" for power in powers]
    return [f"{x:,}" for x in xs]


def _plain(value: float, _: int) -> str:
    return f"{value:g}"


def _shade(number: int, of: int) -> Any:
    """A colour from light to dark; the last, of the best model, is the darkest."""
    from matplotlib import colormaps

    return colormaps["viridis_r"](0.1 + 0.9 * number / max(of - 1, 1))


def _new_figure(size: tuple[float, float], panels: int = 0) -> Any:
    """A figure without a window and its axes, or with `panels` that many axes in a row."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    if panels:
        return figure, figure.subplots(1, panels, squeeze=False)[0]
    return figure, figure.subplots()


def _finish(axes: Any, title: str, split: str) -> None:
    axes.set_ylabel({"valid": "validation", "test": "test"}[split] + " perplexity")
    axes.set_title(_powers(title), fontsize=11, loc="left")
    axes.grid(alpha=0.25, which="both")
    axes.spines[["top", "right"]].set_visible(False)
