"""The n-gram baseline through the commands, and its answers as a predictor."""

import json

import numpy as np
import pytest
import torch

from bighmm.cli.main import main
from bighmm.data.corpus import prepare
from bighmm.lm.baselines import find
from bighmm.lm.baselines.ngram import NgramLM, NgramOptions
from bighmm.lm.evaluation import deviation_from_one
from bighmm.lm.opening import open_model


@pytest.fixture
def text(tmp_path):
    generator = np.random.default_rng(0)
    words = np.array([f"w{i}" for i in range(20)])
    lines = [" ".join(generator.choice(words, size=n)) for n in generator.integers(1, 9, size=300)]
    path = tmp_path / "text.txt"
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def run(text, tmp_path, capsys):
    folder = tmp_path / "run"
    main(["train", "--data", str(text), "--family", "ngram", "--order", "3", "--out", str(folder)])
    capsys.readouterr()
    return folder


@pytest.fixture
def lm(text):
    return NgramLM.fit(NgramOptions(order=3), prepare(text))


def test_training_writes_what_other_runs_write(run, text):
    result = json.loads((run / "result.json").read_text())
    assert result["recipe"]["model"]["family"] == "ngram"
    assert result["recipe"]["options"] == {"order": 3, "discounts": "modified"}
    assert 1 < result["test"]["perplexity"] < 40 and result["num_parameters"] > 100
    lm, corpus = open_model(run), prepare(text)
    assert isinstance(lm, NgramLM)
    assert lm.perplexity(corpus).perplexity == pytest.approx(result["test"]["perplexity"])


def test_commands(run, capsys, monkeypatch):
    main(["eval", str(run), "--check-normalised", "--json"])
    assert json.loads(capsys.readouterr().out)["largest_deviation_from_one"] < 1e-9
    main(["next", str(run), "w1 w2", "--n", "3", "--json"])
    assert len(json.loads(capsys.readouterr().out)["next"]) == 3
    main(["sample", str(run), "--n", "4", "--seed", "1", "--json"])
    first = capsys.readouterr().out
    main(["sample", str(run), "--n", "4", "--seed", "1", "--json"])
    assert capsys.readouterr().out == first and len(json.loads(first)["texts"]) == 4


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["tag", "RUN", "w1"], "is not a hidden Markov model, so it has no states"),
        (["eval", "RUN", "--carry"], "carries nothing over an end mark"),
        (
            ["train", "--family", "trigram", "--out", "NEW"],
            "choose from awd-lstm, feed-forward, lstm, ngram, recurrent-hmm, transformer, or hmm",
        ),
    ],
)
def test_refusals(run, capsys, arguments, said, tmp_path):
    places = {"RUN": str(run), "NEW": str(tmp_path / "new")}
    with pytest.raises(SystemExit) as stopped:
        main([places.get(word, word) for word in arguments])
    assert stopped.value.code == 2 and said in capsys.readouterr().err


def test_damaged_folder(run):
    (run / "model" / "vocab.json").write_text("{}")
    with pytest.raises(ValueError):
        open_model(run)


def test_answers_agree_with_each_other(lm):
    predictor = lm.predictor()
    end = predictor.end
    rows = torch.tensor([[3, 4, end, 5], [6, 7, 8, 9], [2, 0, 0, 0]])
    lengths = torch.tensor([4, 3, 0])
    log_probs = predictor.log_prob(rows, lengths)
    assert log_probs[2] == 0
    for row, length, expected in zip(rows, lengths, log_probs, strict=True):
        steps = [predictor.next_token(row[None, :t])[0, row[t]] for t in range(int(length))]
        assert float(sum(steps, torch.tensor(0.0))) == pytest.approx(float(expected))
    assert deviation_from_one(predictor, np.array([3, 4, end, 5, 6, end]), 8) < 1e-9


def test_samples(lm):
    predictor = lm.predictor()
    generator = torch.Generator().manual_seed(0)
    assert predictor.sample(3, length=5, prefix=[4], generator=generator).shape == (3, 5)
    drawn = predictor.sample(2, generator=generator)
    assert all(predictor.end in row for row in drawn.tolist())
    counts = torch.bincount(
        predictor.sample(3000, length=1, generator=generator).view(-1), minlength=lm.tokenizer.size
    )
    probs = predictor.next_token(torch.zeros(1, 0, dtype=torch.long)).exp()[0]
    assert (counts / 3000 - probs).abs().max() < 0.03
    greedy = predictor.sample(1, length=1, temperature=0.0)
    assert int(greedy) == int(probs.argmax())
    with pytest.raises(ValueError, match="length must be at least 0, not -1"):
        predictor.sample(1, length=-1)


def test_unknown_family():
    with pytest.raises(ValueError, match="no baseline 'x'"):
        find("x")
