"""The page as part of an exported site, which opens from files.

Browsers load no ES modules from files, so the modules of the page become one classic script: each
is a function that returns what it exports, in an order in which imports come first.
"""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parent / "page"
ENTRY = "app.js"
MODULE = '<script type="module" src="page/app.js"></script>'
CLASSIC = '<script src="data/index.js"></script>\n    <script src="page/bundle.js" defer></script>'
OTHERS = (".css", ".svg")  # files that are copied as they are
THEME = "theme.js"  # a classic script already

_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([\w.]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
_OTHER = re.compile(r"^(?:import|export)\b.*", re.MULTILINE)


def write_page(folder: Path) -> None:
    """Write index.html and page/ into a folder; its data/index.js holds the answers."""
    html = (PAGE / "index.html").read_text(encoding="utf-8")
    assert MODULE in html, "index.html no longer loads its entry as this file expects"
    target = folder / "page"
    target.mkdir(parents=True, exist_ok=True)
    (folder / "index.html").write_text(html.replace(MODULE, CLASSIC), encoding="utf-8")
    (target / "bundle.js").write_text(bundle(PAGE), encoding="utf-8")
    for path in sorted(PAGE.iterdir()):
        if path.suffix in OTHERS or path.name == THEME:
            (target / path.name).write_bytes(path.read_bytes())


def bundle(page: Path, entry: str = ENTRY) -> str:
    """One classic script that does what a module and all that it imports do."""
    bodies: dict[str, str] = {}  # in the order in which they run
    _collect(page, entry, bodies, ())
    parts = [f"modules[{name!r}] = (() => {{\n{body}}})();\n" for name, body in bodies.items()]
    return '"use strict";\n(() => {\nconst modules = {};\n' + "".join(parts) + "})();\n"


def _collect(page: Path, name: str, bodies: dict[str, str], above: tuple[str, ...]) -> None:
    assert name not in above, f"modules import each other: {' -> '.join([*above, name])}"
    if name in bodies:
        return
    text = (page / name).read_text(encoding="utf-8")
    for _, other in _IMPORT.findall(text):
        _collect(page, other, bodies, (*above, name))
    exported = _EXPORT.findall(text)
    text = _EXPORT.sub("", _IMPORT.sub(r"const {\1} = modules['\2'];" + "\n", text))
    strange = _OTHER.search(text)
    assert strange is None, f"{name}: {strange[0]!r} is no form that the bundle knows"
    bodies[name] = f"{text}return {{ {', '.join(exported)} }};\n"
