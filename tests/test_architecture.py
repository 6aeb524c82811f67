"""Imports go only to rooms further up the table of the architecture page."""

import ast
import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "bighmm"
PAGE = ROOT / "docs" / "understand" / "architecture.md"
APPLICATIONS = {"inspect", "distill", "guide", "sequences"}  # which do not know each other


def rooms():
    """The rooms in the order of the page."""
    table = PAGE.read_text(encoding="utf-8").split("| room |")[1].split("\n\n")[0]
    return re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)


def imported(path):
    """Rooms that a file imports anywhere: inside functions and for types too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module == "bighmm":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bighmm."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
            yield from (name[1] for name in names if name[0] == "bighmm" and len(name) > 1)


def room_of(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


OUTSIDE = {"__init__", "__main__"}  # the package itself, which has no room
FILES = [
    path
    for path in sorted(SOURCE.rglob("*.py"))
    if path.parent != SOURCE or path.stem not in OUTSIDE
]


def test_every_room_is_in_the_table():
    there = {path.stem for path in SOURCE.glob("*.py")} | {
        path.parent.name for path in SOURCE.glob("*/__init__.py")
    }
    assert there - OUTSIDE == set(rooms())


def test_imports_go_up_the_table():
    rank = {room: place for place, room in enumerate(rooms())}
    wrong = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for path in FILES
        for name in imported(path)
        if rank[name] > rank[room_of(path)]
    ]
    assert wrong == []


def test_applications_do_not_know_each_other():
    wrong = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for path in FILES
        if room_of(path) in APPLICATIONS
        for name in imported(path)
        if name in APPLICATIONS and name != room_of(path)
    ]
    assert wrong == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_one_asks_which_family_it_has(path):
    """`isinstance` on a family, support or parameterisation only in its own file."""
    own = {
        "table.py",
        "flat.py",
        "dense.py",
        "blocked.py",
        "per_token.py",
        "neural.py",
        "scalar.py",
    }
    if path.parent.parent.name == "model" and path.name in own:
        return
    kinds = "Table|Flat|Dense|Blocked|PerToken|Neural|Scalar|EmissionTable|FactoredEmission"
    asked = re.findall(rf"isinstance\([^()]*\b(?:{kinds})\b", path.read_text(encoding="utf-8"))
    assert asked == []


def test_packages_say_what_they_export():
    for path in SOURCE.rglob("__init__.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert ast.get_docstring(tree), path
        targets = [
            target.id
            for node in tree.body
            if isinstance(node, ast.Assign | ast.AnnAssign)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        ]
        assert "__all__" in targets, path


def test_exported_names_exist():
    for path in SOURCE.rglob("__init__.py"):
        parts = path.parent.relative_to(SOURCE.parent).parts
        package = importlib.import_module(".".join(parts))
        for name in package.__all__:
            if name != "GuidedLogits" or importlib.util.find_spec("transformers"):
                assert hasattr(package, name), f"{package.__name__}.{name}"
