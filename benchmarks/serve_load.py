"""Latencies of `bighmm serve` for one client, and for many at the same time.

    python benchmarks/serve_load.py

makes a model with random parameters (32,768 states in 128 blocks, two-level), or takes that of
--run, serves it in a process of its own, and asks it: first every question by one client, then all
questions by --clients clients for --seconds, each of which waits for an answer, pauses for --pause
seconds on average and asks again; and then the same without pauses. One more client keeps starting
a long question (a rule) and cancels it. The probability of a text is compared with that of the
library before and after. It ends by itself.
"""

from __future__ import annotations

import http.client
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import tyro

from bighmm import HMMLM
from bighmm.answers import score
from bighmm.data.tokenizers import Words
from bighmm.lm.opening import open_model
from bighmm.model.options import NeuralOptions
from bighmm.model.support import Blocked
from record import ROOT, save, settings_of, surroundings


@dataclass(frozen=True)
class Load:
    run: Path | None = None
    """A model or run to serve; without it one with random parameters is made."""
    states: int = 32_768
    blocks: int = 128
    words: int = 10_000
    clients: int = 50
    seconds: float = 60.0
    pause: float = 1.0
    """Mean of the pauses between an answer and the next question of a client."""
    repeats: int = 10
    """Of each question by one client."""
    threads: int | None = None
    """Of torch for one question, in the server."""
    note: str = ""
    """What else is to be known about the figures, such as other work on the machine."""
    out: str = "bench/serve_load.json"
    """File for the figures, under results/."""


def main(load: Load) -> None:
    with tempfile.TemporaryDirectory() as place:
        run = load.run or _random_model(load, Path(place) / "model")
        lm = open_model(run)
        tokens = [lm.tokenizer.token(i) for i in range(lm.tokenizer.size)]
        words = [word for word in tokens if word.isalnum()]
        text = " ".join(random.Random(0).choices(words, k=12))
        expected = score(lm, [text])["lines"][0]["log_prob"]
        del lm
        with _Server(run, load.threads) as server:
            server.check(text, expected)
            alone = _alone(server, load, words)
            phases = [
                _together(server, load, words, pause) for pause in dict.fromkeys((load.pause, 0.0))
            ]
            server.check(text, expected)
    value = {
        **settings_of(load),
        "run": None if load.run is None else load.run.name,
        "cores": os.cpu_count(),
        "alone": alone,
        "together": phases,
        **surroundings(),
    }
    print(f"saved to {save(load.out, value)}")
    if any(phase["errors"] for phase in phases):
        sys.exit("there were errors")


def question(name: str, words: list[str], rng: random.Random) -> tuple[str, str, Any]:
    """The method, address and body of one question about random words."""
    text = rng.choices(words, k=12)
    gap = rng.randrange(12)
    body: Any = None
    path, method = f"/api/v1/{name}", "POST"
    if name == "score":
        body = {"texts": [" ".join(text)], "words": True}
    elif name == "next":
        body = {"prefix": " ".join(text)}
    elif name == "sample":
        body = {"prefix": " ".join(text[:3]), "length": 30, "seed": rng.randrange(10**6)}
    elif name in ("tag", "posterior"):
        body = {"text": " ".join(text)}
    elif name == "fill":
        body = {"text": " ".join([*text[:gap], "___", *text[gap + 1 :]]), "kind": "probs"}
    else:
        method = "GET"
        state, block = rng.randrange(10**9), rng.randrange(10**9)
        path = {
            "states table": f"/api/v1/states?query={rng.choice(words)[:2]}&sort=entropy",
            "one state": f"/api/v1/states/{state}",
            "blocks": "/api/v1/blocks",
            "moves": "/api/v1/blocks/moves",
            "pair of blocks": f"/api/v1/blocks/{block}/to/{rng.randrange(10**9)}",
            "health": "/api/v1/health",
        }[name]
    return method, path, body


QUESTIONS = (
    *("score", "next", "sample", "tag", "posterior", "fill", "states table", "one state"),
    *("blocks", "moves", "pair of blocks", "health"),
)


class _Server:
    """The server in a process of its own."""

    def __init__(self, run: Path, threads: int | None) -> None:
        command = [sys.executable, "-m", "bighmm", "serve", str(run), "--port", "0"]
        if threads is not None:
            command += ["--threads", str(threads)]
        environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}"}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        self.port = 0

    def __enter__(self) -> _Server:
        assert self.process.stderr is not None
        while not self.port:
            line = self.process.stderr.readline()
            assert line, "the server did not start"
            match = re.search(r"127\.0\.0\.1:(\d+)", line)
            self.port = int(match[1]) if match else 0
        reader = threading.Thread(target=self.process.stderr.read, daemon=True)
        reader.start()
        facts = _Client(self).ask("GET", "/api/v1/model")[1]
        self.states, self.blocks = facts["states"], facts["blocks"] or 1
        _Client(self).ask("GET", "/api/v1/states?wait=30")  # computes the words of all states
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(30)

    def check(self, text: str, expected: float) -> None:
        """The server still gives the library's number."""
        found = _Client(self).ask("POST", "/api/v1/score", {"texts": [text]})[1]
        assert math.isclose(found["lines"][0]["log_prob"], expected, rel_tol=1e-5), found

    def memory(self) -> float:
        """MiB of memory that the process holds."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) / 1024


class _Client:
    """A client with a connection that it keeps."""

    def __init__(self, server: _Server) -> None:
        self.server = server
        self.link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """The status and the answer in JSON."""
        content = None if body is None else json.dumps(body).encode()
        headers = {} if body is None else {"Content-Type": "application/json"}
        self.link.request(method, path, content, headers)
        response = self.link.getresponse()
        return response.status, json.loads(response.read())

    def timed(self, name: str, words: list[str], rng: random.Random) -> tuple[float, int]:
        """Seconds and status of one question."""
        method, path, body = question(name, words, rng)
        path = re.sub(r"/states/(\d+)", lambda m: f"/states/{int(m[1]) % self.server.states}", path)
        path = re.sub(
            r"/blocks/(\d+)/to/(\d+)",
            lambda m: (
                f"/blocks/{int(m[1]) % self.server.blocks}/to/{int(m[2]) % self.server.blocks}"
            ),
            path,
        )
        began = time.perf_counter()
        status, _ = self.ask(method, path, body)
        return time.perf_counter() - began, status


def _alone(server: _Server, load: Load, words: list[str]) -> dict[str, Any]:
    """Latencies of one client, in milliseconds by question."""
    client, rng, found = _Client(server), random.Random(1), {}
    for name in QUESTIONS:
        times = []
        for _ in range(load.repeats):
            seconds, status = client.timed(name, words, rng)
            assert status == 200, (name, status)
            times.append(1e3 * seconds)
        found[name] = {
            "first_ms": round(times[0], 1),
            "median_ms": round(statistics.median(times[1:] or times), 1),
            "most_ms": round(max(times[1:] or times), 1),
        }
        print(name, found[name])
    return found


def _together(server: _Server, load: Load, words: list[str], pause: float) -> dict[str, Any]:
    """Latencies of many clients, by question; errors; memory of the server."""
    times: dict[str, list[float]] = defaultdict(list)
    errors: list[str] = []
    cancelled: list[float] = []
    until = time.monotonic() + load.seconds
    lock = threading.Lock()

    def work(number: int) -> None:
        client, rng = _Client(server), random.Random(100 + number)
        while time.monotonic() < until:
            name = rng.choice(QUESTIONS)
            try:
                seconds, status = client.timed(name, words, rng)
            except (OSError, http.client.HTTPException, ValueError) as error:
                with lock:
                    errors.append(f"{name}: {error!r}")
                client = _Client(server)
                continue
            with lock:
                times[name].append(1e3 * seconds)
                if status != 200:
                    errors.append(f"{name}: status {status}")
            if pause:
                time.sleep(rng.expovariate(1 / pause))

    def work_long() -> None:
        """Begins a long question, and cancels it after some seconds."""
        client = _Client(server)
        body = {"rule": {"must": [words[0]]}, "length": 50, "n": 1}
        while time.monotonic() < until:
            status, told = client.ask("POST", "/api/v1/write?wait=0.2", body)
            if status == 202:
                time.sleep(3)
                began = time.perf_counter()
                client.ask("DELETE", f"/api/v1/jobs/{told['job']['id']}")
                state = "running"
                while state in ("running", "queued"):
                    told = client.ask("GET", f"/api/v1/jobs/{told['job']['id']}?wait=5")[1]
                    state = told["job"]["state"]
                cancelled.append(time.perf_counter() - began)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(load.clients)]
    threads.append(threading.Thread(target=work_long))
    for thread in threads:
        thread.start()
    memory = []
    while time.monotonic() < until:
        memory.append(round(server.memory(), 1))
        time.sleep(min(5.0, load.seconds / 6))
    for thread in threads:
        thread.join()
    memory.append(round(server.memory(), 1))
    every = sorted(t for some in times.values() for t in some)
    result = {
        "pause": pause,
        "answers": len(every),
        "errors": len(errors),
        "first_errors": errors[:5],
        "answers_per_second": round(len(every) / load.seconds, 1),
        "latency_ms": _figures(every),
        "by_question": {name: _figures(sorted(times[name])) for name in QUESTIONS if times[name]},
        "long_questions_cancelled": len(cancelled),
        "most_seconds_until_cancelled": round(max(cancelled, default=0.0), 2),
        "memory_mib": memory,
        "memory_growth_mib": round(memory[-1] - statistics.median(memory[2:5]), 1),
    }
    print({name: result[name] for name in ("pause", "answers", "errors", "latency_ms")})
    return result


def _figures(times: list[float]) -> dict[str, float]:
    def share(q: float) -> float:
        return round(times[min(len(times) - 1, int(q * len(times)))], 1)

    return {"number": len(times), "p50": share(0.5), "p95": share(0.95), "most": share(1.0)}


def _random_model(load: Load, folder: Path) -> Path:
    torch.manual_seed(0)
    letters = [chr(ord("a") + i) for i in range(26)]
    names = [f"{a}{b}{c}" for a in letters for b in letters for c in letters]
    vocabulary = ["<eos>", "<unk>", *names[: load.words - 2]]
    block_of = torch.randperm(len(vocabulary)) % load.blocks
    support = Blocked.of(block_of, load.states)
    options = NeuralOptions(transitions="two-level")  # logits of transitions: deviation 1.6
    lm = HMMLM("neural", options, support, Words(vocabulary), seed=0)
    lm.save_pretrained(folder)
    return folder


if __name__ == "__main__":
    main(tyro.cli(Load))
