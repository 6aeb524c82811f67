"""Screenshots of the explorer for the docs, from a run and a second model to compare it with.

    python benchmarks/screenshots.py runs/pydoc-4096 --other runs/pydoc-ngram

Starts `bighmm explore`, opens its pages in the system's Chromium without a window, and writes
docs/images/explore-*.png. Needs Chromium, the extra `explore` and pillow (`pip install ".[plot]"`).
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from PIL import Image

from record import ROOT

sys.path.insert(0, str(ROOT / "tests" / "explore"))
from browser import Page, find_browser, opened_browser

IMAGES = ROOT / "docs" / "images"
COLOURS = 200  # of a picture; fewer make smaller files
IDLE = "document.querySelector('h1') && !document.querySelector('.working:not([hidden])')"


@dataclass(frozen=True)
class Shot:
    """One picture: an address, the window, and what must be there before it is taken."""

    page: str
    values: dict[str, Any]
    ready: str  # a selector
    width: int = 1120
    most: int = 1400  # pixels of height; a longer page is cut
    dark: bool = False


SENTENCE = "return the name of the file ."
SHOTS = {
    "sentence": Shot("sentence", {"text": SENTENCE}, ".heat-table"),
    "gaps": Shot("sentence", {"text": SENTENCE, "gaps": "2,5"}, ".best-fillings", most=1290),
    "pinned": Shot(
        "sentence",
        {"text": SENTENCE, "pin": "return the name of the server ."},
        ".pinned .heat-table",
        dark=True,
    ),
    "states": Shot("states", {}, ".states tbody tr", most=900),
    "blocks": Shot("blocks", {}, "canvas.map"),
    "write": Shot(
        "write",
        {"prefix": "return the", "must": ["file", "name"], "words": "4..10", "seed": 4, "n": 2},
        ".sample",
    ),
    "training": Shot("training", {}, ".chart .line"),
    "compare": Shot("compare", {"text": SENTENCE}, ".compare .bits"),
    "phone": Shot("sentence", {"text": SENTENCE}, ".heat-table", width=360, most=1000, dark=True),
}


@dataclass(frozen=True)
class Arguments:
    run: tyro.conf.Positional[Path]
    other: Path | None = None  # a second model; without it there is no picture of Compare
    only: tuple[str, ...] = ()  # names of pictures; without any, all of them
    out: Path = IMAGES


def main(arguments: Arguments) -> None:
    executable = find_browser()
    if executable is None:
        raise SystemExit(
            "there is no Chromium on this machine; on Debian: apt-get install chromium"
        )
    names = arguments.only or [name for name in SHOTS if arguments.other or name != "compare"]
    with serving(arguments) as url, opened_browser(executable) as browser:
        page = browser.page()
        settle(page, url)
        for name in names:
            path = arguments.out / f"explore-{name}.png"
            take(page, url, SHOTS[name], path)
            print(f"{path}  {path.stat().st_size // 1000} kB")
        if page.errors:
            raise SystemExit("\n".join(page.errors))


@contextmanager
def serving(arguments: Arguments) -> Iterator[str]:
    """The address of a server for the run, until the block ends."""
    others = [] if arguments.other is None else ["--other", str(arguments.other)]
    command = [sys.executable, "-m", "bighmm", "explore", str(arguments.run), *others]
    process = subprocess.Popen(
        [*command, "--no-browser", "--port", "0"], stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r"http://\S+", line):
                yield found[0]
                return
        raise SystemExit(f"the server has ended with status {process.wait()}")
    finally:
        process.terminate()
        process.wait()


def settle(page: Page, url: str) -> None:
    """Wait until the server has read the corpus, since shares are in the pictures."""
    page.go(f"{url}#/states")
    asked = "fetch('api/v1/model').then((answer) => answer.json()).then((model) => model.survey)"
    page.wait(f"{asked}.then((survey) => survey.state !== 'running')")


def take(page: Page, url: str, shot: Shot, path: Path) -> None:
    """Write one picture, with few colours."""
    page.size(shot.width, 800)
    page.dark(shot.dark)
    page.go(f"{url}#/{shot.page}?{urllib.parse.urlencode(shot.values, doseq=True)}")
    page.find(shot.ready)
    page.wait(IDLE)
    page.size(shot.width, min(shot.most, page.js("document.documentElement.scrollHeight")))
    page.js("new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))")
    picture = Image.open(io.BytesIO(page.picture())).convert("RGB")
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))
