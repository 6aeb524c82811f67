"""Chart of the time of a training step by number of states, with other programs on the same GPU.

    python benchmarks/plot.py

Reads results/bench/{blocked_step,dense_step,peers}.json and writes docs/images/speed.png. Needs
matplotlib (`pip install ".[plot]"`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from record import RESULTS, ROOT

COLOURS = ("#1f5fa8", "#d9730d", "#2d8a4e", "#8e44ad")
PANELS = {
    "blocked": (
        "Words in 128 blocks, 16 × 32 tokens,\nhalf of the states dropped (Penn Treebank)",
        "blocked_step",
        {"hmm-lm": "Chiu & Rush's code"},
    ),
    "dense": (
        "Every state emits all 32,000 words,\n256 × 64 tokens (Lee's code: 200 × 64)",
        "dense_step",
        {
            "Lee": "Lee & Berg-Kirkpatrick's code",
            "PyJuice": "PyJuice 2.6.3 (EM)",
            "Ctrl-G": "Ctrl-G (EM)",
        },
    ),
}


@dataclass(frozen=True)
class Arguments:
    out: Path = ROOT / "docs" / "images" / "speed.png"


def main(arguments: Arguments) -> None:
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    panels = figure.subplots(1, len(PANELS))
    for axes, (title, operation, peers) in zip(panels, PANELS.values(), strict=True):
        lines = {"bighmm": _rows(f"{operation}.json")}
        for name, label in peers.items():
            lines[label] = [row for row in _rows("peers.json") if row["peer"].startswith(name)]
        for colour, (label, rows) in zip(COLOURS, lines.items(), strict=False):
            others = [row for name, rows in lines.items() if name != label for row in rows]
            _line(axes, rows, others, label, colour)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("states")
        axes.set_ylabel("milliseconds per training step")
        axes.set_title(title, fontsize=10, loc="left")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.12, y=0.12)
        figure.canvas.draw()
        low, high = axes.get_ylim()
        axes.set_ylim(low / 1.3, high * 12)  # room for the legend above all points
        axes.legend(frameon=False, fontsize=8, loc="upper left")
    figure.suptitle("Exact training on one NVIDIA H200", fontsize=12)
    figure.savefig(arguments.out, dpi=130)
    print(f"wrote {arguments.out}")


def _line(
    axes: Axes, rows: list[dict[str, Any]], others: list[dict[str, Any]], label: str, colour: str
) -> None:
    """Draw the times of one program, with a number above or below each point."""
    line = [row["states"] for row in rows], [row["ms"] for row in rows]
    axes.plot(*line, "-" if label == "bighmm" else "--", marker="o", color=colour, label=label)
    for states, ms in zip(*line, strict=True):
        near = (other["ms"] for other in others if other["states"] == states)
        low = label == "bighmm" or any(ms < other < 2 * ms for other in near)
        axes.annotate(
            f"{ms:.3g}",
            (states, ms),
            (0, -13 if low else 7),
            textcoords="offset points",
            ha="center",
            fontsize=7,
            color=colour,
        )


def _rows(name: str) -> list[dict[str, Any]]:
    """The rows of a result file that have a time."""
    rows = json.loads((RESULTS / "bench" / name).read_text(encoding="utf-8"))
    return [row for row in rows if "ms" in row]


if __name__ == "__main__":
    main(tyro.cli(Arguments))
