"""`bighmm states` and `bighmm posterior` on the tiny model."""

import sys

import pytest
import torch

from bighmm.data.corpus import prepare
from bighmm.inspect import state_shares
from bighmm.lm.hmmlm import HMMLM

TEXT = "w01 w07 w49"


@pytest.fixture
def lm(trained):
    return HMMLM.from_pretrained(trained / "model")


def test_states(bighmm, ask, trained, text, lm):
    found = ask("states", trained, "--top", 3)
    assert found["num_states"] == 24 and found["split"] == "valid"
    shares = state_shares(lm.hmm(), prepare(text).split("valid"))
    content = torch.nonzero(lm.hmm().tables()[2][:, lm.hmm().end] <= 0.5).squeeze(1)
    order = content[shares[content].argsort(descending=True)]
    assert [row["state"] for row in found["states"]] == order[:3].tolist()
    assert [row["share"] for row in found["states"]] == pytest.approx(shares[order[:3]].tolist())
    first = found["states"][0]
    emission = lm.hmm().tables()[2][first["state"]]
    assert first["words"][0]["word"] == lm.tokenizer.token(int(emission.argmax()))
    assert first["words"][0]["prob"] == pytest.approx(float(emission.max()))
    assert len(first["next"]) == len(first["previous"]) == 3
    assert all(neighbour["words"] for neighbour in first["next"] + first["previous"])
    shown = bighmm("states", trained, "--top", 3).out
    assert f"{first['share']:.2%}" in shown and first["words"][0]["word"] in shown


def test_chosen_states(ask, trained, text):
    found = ask("states", trained, "--state", 7, 2, "--words", 1, "--neighbours", 1)
    assert [row["state"] for row in found["states"]] == [7, 2]
    assert all(len(row["words"]) == len(row["next"]) == 1 for row in found["states"])
    without = ask("states", trained / "model", "--sort", "number", "--top", 2)
    assert [row["state"] for row in without["states"]] == [0, 1]
    assert without["split"] is None and without["states"][0]["share"] is None
    other = ask("states", trained / "model", "--sort", "number", "--data", text, "--split", "test")
    assert other["split"] == "test" and len(other["states"]) == 10
    assert all(0 <= row["share"] <= 1 for row in other["states"])


def test_posterior(bighmm, ask, trained, lm):
    found = ask("posterior", trained, TEXT, "--top", 2)
    ids = torch.tensor([lm.encode(TEXT)])
    wanted = lm.hmm().posterior(ids)
    assert found["log_prob_begins"] == pytest.approx(float(wanted.log_prob[0]))
    assert [row["word"] for row in found["tokens"]] == ["w01", "w07", "<unk>"]
    for t, row in enumerate(found["tokens"]):
        best = wanted.marginals[0, t].topk(2)
        assert [s["prob"] for s in row["states"]] == pytest.approx(best.values.tolist())
        states = wanted.states[0, t][best.indices].tolist()
        assert [s["state"] for s in row["states"]] == states and row["states"][0]["words"]
    shown = bighmm("posterior", trained, TEXT).out
    assert "w07" in shown and f"{found['tokens'][0]['states'][0]['prob']:.2f}" in shown


def test_posterior_as_a_picture(bighmm, trained, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    path = tmp_path / "picture.svg"
    assert bighmm("posterior", trained, TEXT, "--plot", path).status == 0
    assert "<svg" in path.read_text()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    said = bighmm("posterior", trained, TEXT, "--plot", path)
    assert said.status == 2
    assert "matplotlib is not installed; install bighmm[plot]" in said.err


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        (["states", "MODEL/model"], "does not say what it was trained on; give --data"),
        (["states", "MODEL", "--state", "24"], "there is no state 24: states go from 0 to 23"),
        (["states", "MODEL", "--top", "0"], "top must be at least 1, not 0"),
        (["states", "MODEL", "--neighbours", "0"], "neighbours must be at least 1"),
        (["posterior", "MODEL", " "], "the text is empty"),
        (["posterior", "MODEL", "w01", "--words", "0"], "words must be at least 1"),
        (["posterior", "MODEL", "w01", "--plot", "no/such/folder/x.png"], "No such file"),
    ],
)
def test_mistakes(bighmm, trained, arguments, sentence):
    if "--plot" in arguments:
        pytest.importorskip("matplotlib")
    done = bighmm(*(word.replace("MODEL", str(trained)) for word in arguments))
    assert done.status == 2 and sentence in done.err and done.err.count("\n") == 1
