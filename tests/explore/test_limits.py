"""Requests that are refused, each with a status and one sentence; and who may ask at all."""

import pytest
from served import Client

from bighmm.explore import Limits, make_app

LONG = "the " * 2000


@pytest.mark.parametrize(
    ("path", "body", "status", "sentence"),
    [
        ("/score", {}, 400, "no field 'texts'"),
        ("/score", {"texts": "the cat"}, 400, "texts"),
        ("/score", {"texts": [1]}, 400, "texts"),
        ("/score", {"texts": []}, 422, "there is no text"),
        ("/score", {"text": ["a"]}, 400, "did you mean 'texts'"),
        ("/score", {"texts": ["a\nb"]}, 422, "line break"),
        ("/score", {"texts": [LONG]}, 413, "8,000 characters; at most 4,000"),
        ("/score", {"texts": ["a"] * 257}, 413, "257 texts; at most 256"),
        ("/score", {"texts": ["a"], "words": 1}, 400, "words"),
        ("/next", {"n": 0}, 400, "n"),
        ("/next", {"n": 201}, 400, "n"),
        ("/next", {"n": True}, 400, "n"),
        ("/sample", {"n": 2, "length": 501}, 400, "length"),
        ("/sample", {"temperature": -1}, 400, "temperature"),
        ("/sample", {"seed": 2**63}, 400, "seed"),
        ("/sample", {"rule": {"must": ["zebra"]}}, 422, "'zebra'"),
        ("/sample", {"rule": {"mus": ["cat"]}}, 400, "did you mean 'must'"),
        ("/sample", {"rule": {"must": ["cat " * 6000]}}, 413, "at most 20,000"),
        ("/rule", {"rule": {}}, 422, "there is no rule"),
        ("/rule", {"rule": {"regex": "(("}}, 422, ""),
        ("/fill", {"text": "no gap"}, 422, "no gap"),
        ("/fill", {"text": "___", "kind": "worst"}, 400, "kind"),
        ("/fill", {"text": "___1-90 ___1-90"}, 422, "at most"),
        ("/tag", {"text": ""}, 422, "no token"),
        ("/states", {"states": [16]}, 422, "no state 16"),
        ("/states", {"states": [-1]}, 400, "states"),
        ("/states", {"states": [1] * 501}, 413, "at most 500"),
        ("/compare", {"text": " "}, 422, "no text"),
        ("/compare", {"text": "a " * 200_000}, 413, "200,000"),
        ("/compare?models=a,z", {"text": "a"}, 404, "no model 'z'"),
        ("/tag?wait=-1", {"text": "a"}, 400, "wait"),
        ("/tag?wait=nan", {"text": "a"}, 400, "wait"),
        ("/tag?model=z", {"text": "a"}, 404, "no model 'z'"),
        ("/tag?colour=red", {"text": "a"}, 400, "unknown field 'colour'"),
    ],
)
def test_wrong_questions(client, path, body, status, sentence):
    found = client.post(path, body)
    assert found.status == status and sentence in found.json["error"]["message"]
    assert found.json["error"]["status"] == status and "\n" not in found.json["error"]["message"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "empty"),
        (b"{", "not JSON"),
        (b"[]", "JSON object"),
        (b'{"texts": ["a"], "texts": ["b"]}', "twice"),
        (b'{"texts": ["\\ud800"]}', "Unicode"),
        (b'{"texts": ["\xff"]}', "UTF-8"),
        (b'{"n": NaN}', "finite"),
        (b'{"n": 1e999}', "finite"),
        (b'{"n": %s}' % (b"9" * 5000), "digits"),
        (b"[" * 100_000, "deep"),
    ],
)
def test_wrong_bodies(client, content, sentence):
    found = client.post("/score", content=content)
    assert found.status == 400 and sentence in found.json["error"]["message"]


def test_large_bodies_and_other_types(client):
    found = client.post("/score", content=b" " * (2**20 + 1))
    assert found.status == 413 and "1,048,576 bytes" in found.json["error"]["message"]
    found = client.post("/score", content=b"{}", headers={"content-length": "9" * 30})
    assert found.status == 413
    found = client.post("/score", content=b"{}", headers={"content-type": "text/plain"})
    assert found.status == 415


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/states/16", 404),
        ("/states/-1", 404),
        ("/states/1e3", 404),
        ("/states/٣", 404),
        ("/states?size=501", 400),
        ("/states?size=x", 400),
        ("/states?sort=colour", 400),
        ("/states?page=1&page=2", 400),
        ("/states?block=9", 422),
        ("/blocks/0/to/9", 404),
        ("/runs/z", 404),
        ("/jobs/nothing", 404),
        ("/../../etc/passwd", 404),
        ("/", 404),
    ],
)
def test_wrong_addresses(client, path, status):
    found = client.get(path)
    assert found.status == status and found.json["error"]["message"]


def test_other_methods(client):
    found = client.ask("DELETE", "/states")
    assert found.status == 405 and found.headers["allow"]


def test_tables_that_would_not_fit_are_refused(client, monkeypatch):
    monkeypatch.setattr("bighmm.explore.bodies.MOST_NUMBERS", 1000)
    found = client.post("/sample", {"rule": {"must": ["cat"]}, "length": 100})
    assert found.status == 413 and "a shorter length" in found.json["error"]["message"]
    assert client.post("/sample", {"rule": {"must": ["cat"]}, "length": 5}).status == 200
    found = client.post("/fill", {"text": "the ___1-20 ."})
    assert found.status == 413 and "shorter gaps" in found.json["error"]["message"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "localhost"}, 200),
        ({"host": "LOCALHOST:9"}, 200),
        ({"host": "[::1]:8765"}, 200),
        ({"host": "model.example:8765"}, 200),  # allowed below
        ({"host": "evil.example"}, 403),
        ({"host": "127.0.0.1.evil.example"}, 403),
        ({"host": ""}, 403),
        ({"origin": "http://127.0.0.1:8765"}, 200),
        ({"origin": "http://127.0.0.1:8766"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 200),
    ],
)
def test_who_may_ask(opened, headers, status):
    client = Client(make_app(opened[:1], names=["model.example"]))
    found = client.get("/health", headers=headers)
    assert found.status == status
    assert "default-src 'none'" in found.headers["content-security-policy"]
    assert found.headers["x-content-type-options"] == "nosniff"
    assert "access-control-allow-origin" not in found.headers


def test_only_files_of_the_page_are_sent(client, opened):
    assert client.page("/").headers["content-type"].startswith("text/html")
    assert client.page("/page/app.js").headers["content-type"].startswith("text/javascript")
    for path in ("/page/../app.py", "/page/%2e%2e/app.py", "/page", "/page/", "//etc/passwd"):
        assert client.page(path).status == 404
    without = Client(make_app(opened[:1], page=False))
    assert without.page("/").status == 404 and without.get("/health").status == 200


def test_limits_can_be_set(opened):
    client = Client(make_app(opened[:1], Limits(text=5, number=2)))
    assert client.post("/tag", {"text": "the cat"}).status == 413
    assert client.post("/next", {"n": 3}).status == 400
