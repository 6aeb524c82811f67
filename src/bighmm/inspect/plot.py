"""The posterior of a text as a picture; needs the extra `bighmm[plot]`."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def plot_posterior(rows: Sequence[Any], path: str | Path) -> None:
    """Draw the rows of `posterior_table`: words from left to right, states by first occurrence.

    A cell is dark where p(state | text) is high, and white where the state is not in the table.
    Raises ValueError if matplotlib is not installed, if the suffix of `path` names no format that
    it can write, and if `path` is a folder.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("matplotlib is not installed; install bighmm[plot] or leave out the plot")
    from matplotlib.backend_bases import FigureCanvasBase
    from matplotlib.figure import Figure

    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give the name of a file for the plot")
    if path.suffix[1:].lower() not in FigureCanvasBase.filetypes:
        endings = ", ".join(f".{name}" for name in sorted(FigureCanvasBase.filetypes))
        raise ValueError(f"the ending of {path} is not supported for a plot; use one of {endings}")

    names: dict[int, str] = {}
    for row in rows:
        for found in row["states"]:
            names[found["state"]] = f"{found['state']}: {' '.join(found['words'][:3])}"
    place = {state: y for y, state in enumerate(names)}
    cells = [[0.0] * len(rows) for _ in names]
    for x, row in enumerate(rows):
        for found in row["states"]:
            cells[place[found["state"]]][x] = found["prob"]

    size = (3.5 + 0.45 * len(rows), 1.5 + 0.22 * len(names))
    figure = Figure(figsize=(min(size[0], 40), min(size[1], 60)), layout="constrained")
    axes = figure.add_subplot()
    picture = axes.imshow(cells, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    # A word may hold a dollar sign, which is not meant as a formula.
    words = [_printable(row["word"]) for row in rows]
    axes.set_xticks(range(len(rows)), words, rotation=60, ha="right", parse_math=False)
    labels = [_printable(name) for name in names.values()]
    axes.set_yticks(range(len(names)), labels, fontsize=7, parse_math=False)
    figure.colorbar(picture, label="p(state | text)")
    figure.savefig(path, dpi=140)


def _printable(text: str) -> str:
    return repr(text)[1:-1]
