"""A page that needs no server: its data are the server's answers."""

import json
import re

import pytest
from served import LINES, WORDS

from bighmm.data.tokenizers import Words
from bighmm.explore import export_site
from bighmm.explore.export import about_sentence
from bighmm.lm.hmmlm import HMMLM
from bighmm.model.options import NeuralOptions
from bighmm.model.support import Dense

TEXT = LINES[0]


def scripts(folder):
    """The values that the scripts hand to the page, by file."""
    found = {}
    for path in folder.glob("*.js"):
        text = path.read_text(encoding="utf-8")
        match = re.fullmatch(
            r'window\.(?:bighmmStatic = |bighmmChunk\("\w+", \d+, )(.*?)\)?;\n', text, re.DOTALL
        )
        found[path.name] = json.loads(match[1])
    return found


@pytest.mark.parametrize(("number", "key"), [(0, "a"), (2, "c"), (3, "d")])
def test_data_are_the_answers_of_the_server(client, opened, tmp_path, number, key):
    export_site(opened[number], tmp_path / "site", [TEXT])
    found = scripts(tmp_path / "site" / "data")
    assert (tmp_path / "site" / "index.html").exists()
    index = found["index.js"]
    facts = client.get(f"/model?model={key}").json
    assert {**index["model"], "survey": None} == {**facts, "survey": None}
    score = client.post(f"/score?model={key}", {"texts": [TEXT], "words": True}).json
    assert found["sentences.js"][0]["score"] == score
    assert index["curve"]["steps"] == client.get(f"/runs/{key}").json["steps"]
    if key == "d":  # it has no states
        assert index["columns"] is None and index["chunks"] == 0
        return
    assert found["sentences.js"][0]["tag"] == client.post(f"/tag?model={key}", {"text": TEXT}).json
    gaps = found["sentences.js"][0]["gaps"]
    blanked = {"text": "the ___ sat on the mat .", "kind": "probs", "n": 10}
    assert len(gaps) == 7
    assert gaps[1]["probs"] == client.post(f"/fill?model={key}", blanked).json
    best = {"text": blanked["text"], "kind": "best", "n": 5}
    assert gaps[1]["best"] == client.post(f"/fill?model={key}", best).json
    for state in found["states-0.js"]:
        alone = client.get(f"/states/{state['state']}?model={key}").json
        at = client.get(f"/states/{state['state']}/contexts?model={key}&size=10").json["contexts"]
        assert state.pop("contexts") == at
        assert state["words"] == alone["words"] and state["block"] == alone["block"]
        assert state["entropy_bits"] == index["columns"]["entropy_bits"][state["state"]]
    if key == "a":
        assert index["moves"] == client.get("/blocks/moves").json
        assert index["blocks"] == client.get("/blocks").json
        assert found["blocks.js"] == [client.get(f"/blocks/{block}").json for block in range(4)]
    else:
        assert index["blocks"] is None and index["moves"] is None


def test_words_are_blanked_as_the_page_writes_them():
    words = Words(WORDS, split="words", lowercase=True)
    options = NeuralOptions(width=8, init_scale=1.0, layers=1)
    lm = HMMLM("neural", options, Dense(6, len(WORDS)), words, seed=1)
    found = about_sentence(lm, "The  xyzzy, SAT.", states=True)["gaps"]
    assert [one["text"] for one in found] == ["___ xyzzy, SAT.", "The ___2 SAT.", "The xyzzy, ___2"]
    assert [len(one["probs"]["gaps"]) for one in found] == [1, 2, 2]
    (own,) = about_sentence(lm, "the ___1-2 sat", states=True)["gaps"]
    assert own["text"] == "the ___1-2 sat" and len(own["probs"]["lengths"]) == 2


def test_only_an_earlier_export_is_replaced(opened, tmp_path):
    export_site(opened[4], tmp_path / "site")
    export_site(opened[4], tmp_path / "site")
    (tmp_path / "site" / "thesis.tex").write_text("all my work")
    with pytest.raises(ValueError, match="would be lost"):
        export_site(opened[4], tmp_path / "site")


def test_the_command(runs, tmp_path, bighmm):
    done = bighmm(
        *("explore", runs["no-corpus"], "--export", tmp_path / "site", "--sentence", TEXT)
    )
    assert done.status == 0 and "index.html" in done.out
    assert (tmp_path / "site" / "data" / "states-0.js").exists()
    done = bighmm("explore", runs["no-corpus"], "--sentence", TEXT)
    assert done.status == 2 and "--export" in done.err


def test_commands_say_what_is_missing(runs, bighmm, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "uvicorn", None)
    done = bighmm("serve", runs["two-level"])
    assert done.status == 2 and 'install "bighmm[explore]"' in done.err


def test_a_port_that_is_taken(runs, bighmm):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = bighmm("serve", runs["no-corpus"], "--port", taken.getsockname()[1])
    assert done.status == 2 and "cannot listen on 127.0.0.1" in done.err
