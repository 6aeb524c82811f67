"""A server with tiny models, in this process, and a site exported from one of them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from served import log_lines, make_run

from bighmm.cli.main import main
from bighmm.data.tokenizers import Words
from bighmm.explore import make_app, open_all
from bighmm.lm.hmmlm import HMMLM
from bighmm.model.options import NeuralOptions
from bighmm.model.support import Blocked

HOSTILE = "<img/src=x/onerror=alert(1)>"  # a word of the vocabulary, and a name of a state
LONG = "donaudampfschifffahrtsgesellschaftskapitän"  # wider than a column on a phone
WORDS = ["<eos>", "<unk>", HOSTILE, *(f"w{number:02}" for number in range(32)), LONG]
STATES, BLOCKS = 24, 4


PATIENCE = 5  # seconds; the thread ends with the process in any case


@dataclass(frozen=True)
class Site:
    """A server and the models it has."""

    url: str
    lm: HMMLM  # the first model
    other: HMMLM  # the second
    run: Path  # of the first


@contextmanager
def served_models(folder: Path) -> Iterator[Site]:
    """Serve models on a free port, until the block ends.

    Two are random ones, a and b. Model c is an n-gram model, and d has no corpus.
    """
    text = folder / "tiny.txt"
    text.write_text(f"w03 w21 w29 {LONG} {LONG}\nw04 w30\n" * 20, encoding="utf-8")
    runs = [folder / "first", folder / "second"]
    models = [_make_run(run, text, seed) for seed, run in enumerate(runs)]
    others = [make_run(folder / "ngram", "ngram"), make_run(folder / "bare", corpus=False)]
    with _serving(make_app(open_all([*runs, *others]))) as url:
        yield Site(url, *models, runs[0])


def exported(site: Site, folder: Path, sentences: Sequence[str]) -> Path:
    """The folder of a site with some sentences, written by the command."""
    flags = [flag for text in sentences for flag in ("--sentence", text)]
    main(["explore", str(site.run), "--export", str(folder), *flags])
    return folder


def _make_run(folder: Path, text: Path, seed: int) -> HMMLM:
    support = Blocked.of(torch.arange(len(WORDS)) % BLOCKS, STATES)
    options = NeuralOptions(width=8, init_scale=1.0, transitions="two-level", layers=1)
    lm = HMMLM("neural", options, support, Words(WORDS), seed=seed)
    lm.save_pretrained(folder / "model")
    recipe = {"recipe": {"corpus": {"data": str(text)}}}
    (folder / "recipe.json").write_text(json.dumps(recipe), encoding="utf-8")
    (folder / "log.jsonl").write_text("".join(log_lines(1, 6)), encoding="utf-8")
    return lm


@contextmanager
def _serving(app: Any) -> Iterator[str]:
    uvicorn = pytest.importorskip("uvicorn")
    settings = {"log_level": "warning", "timeout_graceful_shutdown": 3}  # as the command has
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, **settings))
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
        thread.join(PATIENCE)
        if thread.is_alive():  # it may wait for a connection that nobody closes
            server.force_exit = True
            thread.join(PATIENCE)
