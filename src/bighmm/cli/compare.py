"""`bighmm compare`: runs side by side."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from bighmm.cli.common import AsJson, out, parse, print_json

if TYPE_CHECKING:
    from bighmm.train.comparing import RunRecord

MARKS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
WIDTH, HEIGHT = 64, 14  # characters of the curves


@dataclass(frozen=True)
class CompareArguments:
    """What differs in the settings of runs, their figures and their validation curves."""

    runs: Annotated[
        tuple[Path, ...],
        tyro.conf.Positional,
        tyro.conf.arg(metavar="RUN RUN …", help="Folders of runs, finished or not."),
    ]
    plot: Annotated[
        Path | None, tyro.conf.arg(help="A picture of the curves to write, such as curves.png.")
    ] = None
    as_json: AsJson = False


def compare_command(argv: list[str]) -> None:
    """Print runs side by side."""
    arguments = parse(CompareArguments, argv, "compare")
    if not arguments.runs:
        raise ValueError("there is nothing to compare; give the folders of one run or more")
    if len(arguments.runs) > len(MARKS):
        raise ValueError(f"at most {len(MARKS)} runs are compared, not {len(arguments.runs)}")
    from bighmm.train.comparing import comparison, plot_curves, read_run

    records = [read_run(run) for run in arguments.runs]
    if arguments.plot is not None:
        plot_curves(records, arguments.plot)
    if arguments.as_json:
        print_json(comparison(arguments.runs))
    else:
        _show(records)
        if arguments.plot is not None:
            out().print(f"\ncurves: {arguments.plot}", markup=False)


def _show(records: list[RunRecord]) -> None:
    from rich.table import Table

    from bighmm.train.comparing import differing

    console = out()
    for mark, record in zip(MARKS, records, strict=False):
        console.print(f"{mark}  {record.name}", markup=False)
    marks = MARKS[: len(records)]
    table = Table("", *marks)
    figures = [record.figures() for record in records]
    for name in figures[0]:
        table.add_row(name.replace("_", " "), *(_figure(found[name]) for found in figures))
    console.print(table)
    if len(records) > 1:
        found = differing(records)
        if found:
            table = Table("setting", *marks)
            for name, values in found.items():
                table.add_row(name, *map(_shown, values))
            console.print(table)
        else:
            console.print("their settings are the same")
        if len({record.corpus for record in records}) > 1:
            console.print("they were trained on different texts, so perplexities do not compare")
    for line in curves([record.curve for record in records]):
        console.print(line, markup=False)


def curves(found: list[list[tuple[float, float]]]) -> list[str]:
    """Lines of text that show perplexity by epoch, each curve by its letter; none without points.

    Perplexities are on a logarithmic axis; where letters meet, the first is shown.
    """
    points = [point for curve in found for point in curve]
    if not points:
        return []
    last = max(epoch for epoch, _ in points) or 1.0
    logs = [math.log(perplexity) for _, perplexity in points]
    # The beginning of a run is far above all that follows, which is what one wants to see.
    low, high = min(logs), min(max(logs), min(logs) + math.log(4))
    span = (high - low) or 1.0
    rows = [[" "] * (WIDTH + 1) for _ in range(HEIGHT + 1)]
    for mark, curve in reversed(list(zip(MARKS, found, strict=False))):
        for epoch, perplexity in curve:
            y = min(1.0, (math.log(perplexity) - low) / span)
            rows[HEIGHT - round(y * HEIGHT)][round(epoch / last * WIDTH)] = mark
    lines = ["validation perplexity by epoch"]
    for number, row in enumerate(rows):
        value = math.exp(high - number / HEIGHT * (high - low))
        label = f"{value:8.1f}" if number % 7 == 0 else " " * 8
        lines.append(f"{label} |{''.join(row)}".rstrip())
    return [*lines, " " * 9 + "+" + "-" * (WIDTH + 1), f"{'0':>10}{last:>{WIDTH + 1}.4g}"]


def _figure(value: Any) -> str:
    """A figure of a run: two places, or three digits of what is small."""
    if not isinstance(value, float):
        return _shown(value)
    return f"{value:,.2f}" if value >= 1 or value == 0 else f"{value:.3g}"


def _shown(value: Any) -> str:
    """A value in a table."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.5g}" if isinstance(value, float) else str(value)
