"""Dependencies point one way: the README's table of the code is in their order."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "bighmm"


def ranks():
    """The place of each module or folder in the README's table."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme.split("## How the code is laid out")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    names = [name for row in rows for name in re.findall(r"`([\w/.]+)`", row)]
    return {name.removesuffix(".py").removesuffix("/"): place for place, name in enumerate(names)}


def imported(path):
    """Parts of the package that a file imports when it runs, also inside functions."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and id(node) not in for_types:
            if node.module == "bighmm":
                yield from (alias.name for alias in node.names)
            elif node.module and node.module.startswith("bighmm."):
                yield node.module.split(".")[1]


def test_every_part_is_in_the_table():
    parts = {path.stem for path in SOURCE.glob("*.py")} | {
        path.parent.name for path in SOURCE.glob("*/__init__.py")
    }
    assert parts - {"__init__"} == set(ranks())


def test_imports_go_up_the_table():
    rank = ranks()
    wrong = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for path in SOURCE.rglob("*.py")
        if path.parent != SOURCE or path.stem != "__init__"
        for name in imported(path)
        if rank[name] > rank[path.relative_to(SOURCE).parts[0].removesuffix(".py")]
    ]
    assert wrong == []
