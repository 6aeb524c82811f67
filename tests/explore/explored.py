"""A server with tiny models, in this process, and a site exported from one of them."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from bighmm.cli.main import main
from bighmm.explore import make_app, open_all
from bighmm.lm.opening import open_model

HOSTILE = "<img/src=x/onerror=alert(1)>"  # a word of the vocabulary
SMALL = (
    *("--states", "24", "--blocks", "4", "--width", "8"),
    *("--batch", "8", "--window", "8", "--device", "cpu"),
)


@dataclass(frozen=True)
class Site:
    """A server and the models it has."""

    url: str
    lm: Any  # the first model
    other: Any  # the second
    run: Path  # of the first


@contextmanager
def served_models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Train two tiny models and serve them on a free port, until the block ends."""
    folder = tmp_path_factory.mktemp("explored")
    text = folder / "tiny.txt"
    text.write_text(tiny_text(), encoding="utf-8")
    runs = [folder / "first", folder / "second"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BIGHMM_CACHE", str(folder / "cache"))
        for run, epochs in zip(runs, ("2", "1"), strict=True):
            main(["train", "--data", str(text), *SMALL, "--epochs", epochs, "--out", str(run)])
        opened = open_all(runs)
    with _serving(make_app(opened)) as url:
        yield Site(url, open_model(runs[0]), open_model(runs[1]), runs[0])


def exported(site: Site, folder: Path, sentences: Sequence[str]) -> Path:
    """The folder of a site with some sentences, written by the command."""
    flags = [flag for text in sentences for flag in ("--sentence", text)]
    main(["explore", str(site.run), "--export", str(folder), *flags])
    return folder


def tiny_text() -> str:
    """300 lines of 40 words, each of which is followed by one of three others."""
    draw = random.Random(0)
    lines = []
    for number in range(300):
        words = [draw.randrange(40)]
        for _ in range(5):
            words.append((7 * words[-1] + draw.randrange(3)) % 40)
        last = f" {HOSTILE}" if number % 5 == 0 else ""
        lines.append(" ".join(f"w{word:02}" for word in words) + last)
    return "\n".join(lines) + "\n"


@contextmanager
def _serving(app: Any) -> Iterator[str]:
    uvicorn = pytest.importorskip("uvicorn")
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.01)
        assert thread.is_alive(), "the server has ended"
    port = server.servers[0].sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/"
    finally:
        server.should_exit = True
        thread.join()
