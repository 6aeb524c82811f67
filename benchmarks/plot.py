"""Time against states, from what is under results/bench/.

    python benchmarks/plot.py

Needs matplotlib (`pip install ".[plot]"`). Writes docs/speed.png.
"""

from __future__ import annotations

import json
from typing import Any

from matplotlib import pyplot

from record import RESULTS, ROOT

LABELS = {
    "blocked_step": "training step, blocked, half of the states dropped (16 × 32 tokens)",
    "dense_step": "training step, dense, 32,000 words (256 × 64 tokens)",
    "lee_step": "plain torch, dense, 32,000 words (200 × 64 tokens)",
    "normaliser": "row normaliser, forward and backward",
}


def main() -> None:
    figure, axes = pyplot.subplots(figsize=(7.5, 4.5))
    for name, label in LABELS.items():
        rows = _right_rows(name)
        if rows:
            style = "--" if name == "lee_step" else "-"
            line = [row["states"] for row in rows], [row["ms"] for row in rows]
            axes.plot(*line, style, marker="o", label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xlabel("states")
    axes.set_ylabel("milliseconds")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    axes.set_title("Exact training on one NVIDIA H200")
    figure.tight_layout()
    figure.savefig(ROOT / "docs" / "speed.png", dpi=130)
    print("wrote docs/speed.png")


def _right_rows(name: str) -> list[dict[str, Any]]:
    path = RESULTS / "bench" / f"{name}.json"
    if not path.exists():
        return []
    return [row for row in json.loads(path.read_text(encoding="utf-8")) if "ms" in row]


if __name__ == "__main__":
    main()
