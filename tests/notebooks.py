"""Runs notebooks without Jupyter: their cells in turn, each with what it prints and shows.

    python tests/notebooks.py docs/examples/*.ipynb

writes what the cells show into the files.
"""

from __future__ import annotations

import ast
import io
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any


def run(path: Path) -> tuple[dict[str, Any], list[list[dict[str, Any]]]]:
    """The names that the cells have made, and the outputs of each cell of code."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells = [cell for cell in read(path)["cells"] if cell["cell_type"] == "code"]
    outputs = []
    for number, cell in enumerate(cells, start=1):
        source = "".join(cell["source"])
        outputs.append(_run_cell(source, f"{path.name}, cell {number}", names, number))
    return names, outputs


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def write_outputs(path: Path) -> None:
    """Run a notebook, and write what its cells show into it."""
    notebook, (_, outputs) = read(path), run(path)
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, (cell, shown) in enumerate(zip(code, outputs, strict=True), start=1):
        cell["execution_count"], cell["outputs"] = number, shown
    text = json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"
    path.write_text(text, encoding="utf-8")


def _run_cell(source: str, name: str, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    tree, value = ast.parse(source, name), None
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(compile(tree, name, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), name, "eval"), names)
    shown: list[dict[str, Any]] = []
    if printed.getvalue():
        text = printed.getvalue().splitlines(keepends=True)
        shown.append({"output_type": "stream", "name": "stdout", "text": text})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = value._repr_html_().splitlines(keepends=True)
        result = {"execution_count": number, "data": data, "metadata": {}}
        shown.append({"output_type": "execute_result", **result})
    return shown


if __name__ == "__main__":
    for given in sys.argv[1:]:
        write_outputs(Path(given))
