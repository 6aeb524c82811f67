"""Small runs to serve, and a client that asks an application without a network."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from bighmm.data.tokenizers import Words
from bighmm.lm.baselines.kneser_ney import KneserNey
from bighmm.lm.baselines.ngram import NgramLM
from bighmm.lm.hmmlm import HMMLM
from bighmm.lm.options import NgramOptions
from bighmm.model.options import NeuralOptions
from bighmm.model.support import Blocked, Dense

WORDS = ["<eos>", "<unk>", "the", "a", "cat", "dog", "mat", "sat", "saw", "ran", "on", "."]
LINES = [
    "the cat sat on the mat .",
    "a dog saw the cat .",
    "the dog ran .",
    "a cat saw a dog on the mat .",
]
BLOCKS = torch.tensor([0, 0, 1, 1, 2, 2, 2, 3, 3, 3, 0, 0])


def tokenizer() -> Words:
    return Words(WORDS)


def make_run(folder: Path, kind: str = "two-level", *, corpus: bool = True) -> Path:
    """A run with a random model: two-level, flat, dense, or ngram; with a corpus and a log."""
    folder.mkdir(parents=True)
    if kind == "ngram":
        ids = np.array(tokenizer().encode("\n".join(LINES) + "\n"), dtype=np.uint16)
        model = KneserNey.fit(ids, len(WORDS), tokenizer().end, order=3)
        lm: Any = NgramLM(NgramOptions(order=3), model, tokenizer())
    else:
        dense = kind == "dense"
        support = Dense(6, len(WORDS)) if dense else Blocked.of(BLOCKS, 16)
        options = NeuralOptions(
            width=8, init_scale=1.0, transitions="flat" if dense else kind, layers=1
        )
        lm = HMMLM("neural", options, support, tokenizer(), seed=1)
    lm.save_pretrained(folder / "model")
    recipe: dict[str, Any] = {"recipe": {"corpus": {}}}
    if corpus:
        text = folder.parent / f"{folder.name}.txt"
        text.write_text("\n".join(LINES * 20) + "\n", encoding="utf-8")
        recipe["recipe"]["corpus"]["data"] = str(text)
    else:
        recipe["recipe"]["corpus"]["data"] = str(folder / "gone.txt")
    (folder / "recipe.json").write_text(json.dumps(recipe), encoding="utf-8")
    (folder / "log.jsonl").write_text("".join(log_lines(1, 6)), encoding="utf-8")
    return folder


def log_lines(first: int, last: int) -> list[str]:
    """Lines of a log, with a look at the validation text after every third step."""
    lines = []
    for step in range(first, last + 1):
        record = {"kind": "step", "step": step, "total_steps": 9, "epoch": step / 9}
        record |= {"loss": 9.0 - step, "lr": 0.1, "tokens": 100 * step, "seconds": 2.0 * step}
        lines.append(json.dumps(record) + "\n")
        if step % 3 == 0:
            check = {"kind": "check", "step": step, "perplexity": 100.0 / step, "best": True}
            lines.append(json.dumps(check) + "\n")
    return lines


class Client:
    """Asks an ASGI application, which runs in a thread of its own, as a server would run it."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.events: asyncio.Queue[Any] = asyncio.Queue()
        self.told: asyncio.Queue[Any] = asyncio.Queue()

    def __enter__(self) -> Client:
        self._do(self._begin())
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()

    def get(self, path: str, **more: Any) -> SimpleNamespace:
        return self.ask("GET", path, **more)

    def post(self, path: str, body: Any = None, **more: Any) -> SimpleNamespace:
        return self.ask("POST", path, body, **more)

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content: bytes | None = None,
        headers: dict[str, str] | None = None,
        leave: bool = False,
    ) -> SimpleNamespace:
        """status, headers, content and json of an answer.

        body: sent as JSON; content: sent as it is. leave: close the connection at once.
        """
        given = {"host": "127.0.0.1:8765"}
        if body is not None:
            content = json.dumps(body).encode()
        if content is not None:
            given["content-type"] = "application/json"
        given |= headers or {}
        return self._do(self._ask(method, f"/api/v1{path}", content or b"", given, leave))

    def page(self, path: str) -> SimpleNamespace:
        """An address outside of the API."""
        return self._do(self._ask("GET", path, b"", {"host": "localhost"}, False))

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout=60)

    async def _begin(self) -> None:
        scope = {"type": "lifespan", "asgi": {"version": "3.0"}}
        self.running = asyncio.ensure_future(self.app(scope, self.events.get, self.told.put))
        await self.events.put({"type": "lifespan.startup"})
        assert (await self.told.get())["type"] == "lifespan.startup.complete"

    async def _end(self) -> None:
        await self.events.put({"type": "lifespan.shutdown"})
        await self.told.get()
        await self.running

    async def _ask(
        self, method: str, path: str, content: bytes, headers: dict[str, str], leave: bool
    ) -> SimpleNamespace:
        path, _, query = path.partition("?")
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "server": ("127.0.0.1", 8765),
            "client": ("127.0.0.1", 5),
        }
        parts = [{"type": "http.request", "body": content, "more_body": False}]
        forever = asyncio.Event()
        sent: list[Any] = []

        async def receive() -> Any:
            if parts:
                return parts.pop()
            if not leave:
                await forever.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.app(scope, receive, send)
        body = b"".join(message.get("body", b"") for message in sent[1:])
        found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
        as_json = "json" in found.get("content-type", "")
        return SimpleNamespace(
            status=sent[0]["status"],
            headers=found,
            content=body,
            json=json.loads(body) if as_json else None,
        )
