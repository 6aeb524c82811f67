"""Malformed requests to a real server: none may give a status from 500 on, none may end it.

    python -m tests.explore.fuzz --requests 2000 --seed 1

starts `bighmm serve` with a small model in a process of its own, sends requests that are wrong in
all the ways below over sockets, and asks after each whether the server still answers. The figures
go to results/fuzz_server.json. A slice is among the tests. The same seed gives the same requests.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import socket
import string
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(Path(__file__).parent)]

GOOD: dict[str, dict[str, Any]] = {
    "score": {"texts": ["the cat sat ."], "words": True},
    "next": {"prefix": "the", "n": 3, "length": 5, "rule": {"must": ["cat"]}},
    "sample": {"n": 2, "prefix": "a", "length": 6, "temperature": 0.5, "seed": 1},
    "fill": {"text": "the ___ sat ___1-2", "kind": "best", "n": 2, "open_end": False},
    "tag": {"text": "the dog ran", "words": 3},
    "posterior": {"text": "the dog ran", "top": 3, "words": 2},
    "states": {"states": [1, 2], "sort": "number", "words": 2, "neighbours": 2, "top": 3},
    "rule": {"rule": {"must": ["cat"], "words": [2, 5], "text": "[a-z ]+"}, "length": 6},
    "write": {"rule": {"must_not": ["dog"], "regex": "the .*"}, "length": 6, "n": 2},
    "compare": {"text": "the cat\na dog"},
}
PATHS = (
    *("health", "openapi.json", "models", "model", "states", "states/3", "states/3/contexts"),
    *("blocks", "blocks/moves", "blocks/1", "blocks/1/to/2", "names", "names/3", "runs", "runs/a"),
    *("jobs/x", "survey", *GOOD),
)
METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "BREW", "get", "")
SCHEMAS = (
    {"type": "object", "properties": {"a": {"$ref": "#"}}},
    {"type": "array", "items": {"type": "string", "pattern": "(a+)+$"}, "minItems": 10**9},
    {"enum": list(range(50))},
    {"allOf": [{"type": "integer"}, {"type": "string"}]},
    "{",
)
PATTERNS = ("((", "(a|b)*{3", "[", "the (old | new) .*", "." * 300, "(" * 200 + ")" * 200, "\\")


def odd_value(rng: random.Random, depth: int = 0) -> Any:
    """A value that no field expects."""
    kinds: list[Callable[[], Any]] = [
        lambda: None,
        lambda: rng.choice([True, False]),
        lambda: rng.choice([0, -1, 1, 2**31, 2**63, 10**30, -(2**64), 1.5, -0.0, 1e308, 1e-320]),
        lambda: odd_text(rng),
        lambda: [],
        lambda: {},
        lambda: [odd_value(rng, depth + 1) for _ in range(rng.randrange(4))],
        lambda: {odd_text(rng)[:20]: odd_value(rng, depth + 1) for _ in range(rng.randrange(3))},
        lambda: rng.choice(SCHEMAS),
        lambda: rng.choice(PATTERNS),
    ]
    return rng.choice(kinds if depth < 4 else kinds[:5])()


def odd_text(rng: random.Random) -> str:
    """A text with odd characters, gaps and lengths."""
    return rng.choice(
        [
            "",
            " \t\n",
            "the " * rng.randrange(2000),
            "\x00\x01\x7f",
            "___" * rng.randrange(1, 9),
            "___1-99 " * rng.randrange(1, 4),
            "___0 ___999999999999",
            "".join(chr(rng.choice([rng.randrange(32, 1000), 0x1F600, 0x2028])) for _ in range(30)),
            "".join(rng.choice(string.printable) for _ in range(rng.randrange(200))),
            "<eos> <unk> the",
            rng.choice(PATTERNS),
        ]
    )


def odd_body(rng: random.Random, question: str) -> bytes:
    """The body of a request: a good one that was changed, or none at all."""
    body: Any = json.loads(json.dumps(GOOD[question]))
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        at = body
        while isinstance(at.get("rule"), dict) and rng.random() < 0.5:
            at = at["rule"]
        names = [*at, *at, "rule", "schema", "text", "regex", "words", odd_text(rng)[:10]]
        action, name = rng.random(), rng.choice(names)
        if action < 0.1 and at:
            at.pop(rng.choice(list(at)))
        elif action < 0.6:  # a value of the right type, which gets further
            at[name] = _like(rng, at.get(name, ""))
        else:
            at[name] = odd_value(rng)
    text = json.dumps(body, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
    action = rng.random()
    if action < 0.1:
        place = rng.randrange(len(text) + 1)
        text = text[:place] + rng.randbytes(rng.randrange(5)) + text[place + rng.randrange(5) :]
    elif action < 0.2:
        text = rng.choice(
            [
                b"",
                b"[" * 50_000,
                b'{"a":' * 5_000,
                b'{"texts": ["\\ud800"]}',
                b'{"n": ' + b"9" * 10_000 + b"}",
                b'{"n": Infinity}',
                b"\xef\xbb\xbf{}",
                b"\xff\xfe{\x00}\x00",
                b'{"text": "' + b"a" * rng.randrange(2**21) + b'"}',
                rng.randbytes(200),
            ]
        )
    return text


def _like(rng: random.Random, value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice([0, 1, 2, 7, 100, 200, 201, 500, 501, 10**6, 2**62])
    if isinstance(value, float):
        return rng.choice([0.0, 1e-9, 0.1, 5.0, 999.0, 1001.0])
    if isinstance(value, str):
        return odd_text(rng)
    if isinstance(value, list):
        return [_like(rng, item) for item in value * rng.choice([0, 1, 2, 300])]
    return odd_value(rng)


def odd_request(rng: random.Random) -> bytes:
    """The bytes of a request that is wrong in some way, or right by chance."""
    if rng.random() < 0.05:
        return rng.choice(
            [
                rng.randbytes(rng.randrange(1, 300)),
                b"GET\r\n\r\n",
                b"GET / HTTP/9.9\r\n\r\n",
                b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
                b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 5_000 + b"\r\n",
                b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
                b"POST /api/v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
                b"POST /api/v1/score HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json"
                b"\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
            ]
        )
    question = rng.choice(list(GOOD))
    usual = rng.random() < 0.75
    path = question if usual else rng.choice(PATHS)
    method = "POST" if usual else rng.choice(METHODS)
    if rng.random() < 0.2:
        path = rng.choice(
            [
                path + "/" + str(rng.choice([-1, 10**12, "x", "%00", "..", "%2e%2e/%2e%2e"])),
                "../" * 5 + "etc/passwd",
                path + "%ff%fe",
                "\u00fc".join(path),
            ]
        )
    query = ""
    if rng.random() < 0.3:
        name = rng.choice(
            ["wait", "model", "page", "size", "sort", "query", "block", "after", "x", "%00"]
        )
        value = rng.choice(["0.01", "-1", "nan", "1e9", "a", "%ff", "9" * 40, "", "b&wait=0"])
        query = f"?{name}={value}"
    body = odd_body(rng, question) if method in ("POST", "PUT", "BREW") else b""
    headers = {
        "Host": rng.choice(["127.0.0.1"] * 60 + ["evil.example", "", "a" * 500]),
        "Content-Type": rng.choice(["application/json"] * 60 + ["text/plain", "", "a/b; c=d"]),
        "Content-Length": str(len(body)),
        "Connection": "close",
    }
    if rng.random() < 0.05:
        headers["Origin"] = rng.choice(["null", "http://evil.example", "http://127.0.0.1"])
    if rng.random() < 0.03:
        headers["Content-Length"] = rng.choice(["0", "9" * 30, "x", str(len(body) + 10)])
    lines = [f"{method} /api/v1/{path}{query} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode("utf-8", "replace") + b"\r\n\r\n" + body


def exchange(port: int, request: bytes, patience: float = 90.0) -> int | None:
    """The status of the answer; None if the server closed the connection without one."""
    head, _, body = request.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)\r\n", head + b"\r\n")
    whole = b"\r\n\r\n" in request and int(length[1] if length else 0) == len(body)
    with socket.create_connection(("127.0.0.1", port), timeout=patience) as link:
        found = b""
        # It may have answered and closed before it has read everything.
        with contextlib.suppress(ConnectionError, TimeoutError):
            link.sendall(request)
            if not whole:  # the server waits for the rest, which does not come
                link.settimeout(0.3)
            while part := link.recv(1 << 16):
                found += part
                if _complete(found):
                    break
    match = re.match(rb"HTTP/1\.\d (\d{3})", found)
    return int(match[1]) if match else None


def _complete(answer: bytes) -> bool:
    """Whether an answer is there, with all of its body."""
    head, end, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: (\d+)", head)
    return bool(end) and length is not None and len(body) >= int(length[1])


def attack(port: int, requests: int, seed: int, alive: Callable[[], bool]) -> dict[str, Any]:
    """Send the requests, and return how often each status came, and what went wrong."""
    health = b"GET /api/v1/health HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    statuses: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    slowest = 0.0
    for number in range(requests):
        request = odd_request(random.Random(f"{seed}-{number}"))
        began = time.monotonic()
        status = exchange(port, request)
        slowest = max(slowest, time.monotonic() - began)
        statuses[str(status or "closed")] += 1
        ok = alive() and exchange(port, health) == 200
        if not ok or (status or 0) >= 500:
            failures.append({"number": number, "status": status, "alive": ok})
            print(f"request {number}: status {status}, alive {ok}\n{request[:2000]!r}")
        if not ok:
            break
    return {
        "requests": requests,
        "seed": seed,
        "statuses": dict(sorted(statuses.items())),
        "slowest_seconds": round(slowest, 3),
        "failures": failures,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Malformed requests to a server.")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "fuzz_server.json")
    asked = parser.parse_args()
    from served import make_run

    from papers.record import surroundings

    with tempfile.TemporaryDirectory() as place:
        run = make_run(Path(place) / "run")
        command = [sys.executable, "-m", "bighmm", "serve", str(run), "--port", "0"]
        environment = os.environ | {"BIGHMM_CACHE": f"{place}/cache", "OMP_NUM_THREADS": "1"}
        server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        try:
            assert server.stderr is not None
            port = 0
            while not port:
                line = server.stderr.readline()
                assert line, "the server did not start"
                match = re.search(r"127\.0\.0\.1:(\d+)", line)
                port = int(match[1]) if match else 0
            import threading

            said: list[str] = []
            reader = threading.Thread(target=lambda: said.extend(server.stderr or ()), daemon=True)
            reader.start()
            found = attack(port, asked.requests, asked.seed, lambda: server.poll() is None)
        finally:
            server.terminate()
            server.wait(30)
    found["tracebacks"] = sum("Traceback" in line for line in said)
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    asked.out.write_text(json.dumps(found | surroundings(), indent=1) + "\n", encoding="utf-8")
    print(json.dumps({name: found[name] for name in ("statuses", "slowest_seconds", "tracebacks")}))
    if found["tracebacks"]:
        print("".join(said)[-3000:])
    return 1 if found["failures"] or found["tracebacks"] else 0


if __name__ == "__main__":
    sys.exit(main())
