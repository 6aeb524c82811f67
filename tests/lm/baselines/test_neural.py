"""The neural baselines: sizes, answers, training through the same loop, and resuming."""

import json

import numpy as np
import pytest
import torch

from bighmm.cli.main import main
from bighmm.data.corpus import prepare
from bighmm.lm.baselines import find
from bighmm.lm.baselines.neural import LSTMLM, FeedForwardLM, FeedForwardOptions, LSTMOptions
from bighmm.lm.evaluation import deviation_from_one
from bighmm.lm.opening import open_model
from watching import losses

KINDS = {
    "feed-forward": (FeedForwardLM, FeedForwardOptions(width=8, order=4)),
    "lstm": (LSTMLM, LSTMOptions(width=8)),
}


@pytest.fixture(params=KINDS)
def lm(request, text):
    kind, options = KINDS[request.param]
    return kind(options, prepare(text).tokenizer, seed=1)


@pytest.mark.parametrize(
    "family, vocabulary, millions",
    [
        ("feed-forward", 10_000, 2.9),
        ("feed-forward", 33_278, 8.8),
        ("lstm", 10_000, 3.6),
        ("lstm", 33_278, 9.6),
    ],
)
def test_sizes_of_the_paper(family, vocabulary, millions):
    kind = find(family)
    with torch.device("meta"):
        network = kind.model.network(kind.options(), vocabulary)
    size = sum(p.numel() for p in network.parameters())
    assert round(size / 1e6, 1) == millions


def test_answers_agree_with_each_other(lm):
    predictor = lm.predictor()
    rows = torch.tensor([[3, 4, lm.end, 5], [6, 7, 8, 9], [2, 0, 0, 0]])
    lengths = torch.tensor([4, 3, 0])
    log_probs = predictor.log_prob(rows, lengths)
    assert log_probs[2] == 0
    for row, length, expected in zip(rows, lengths, log_probs, strict=True):
        steps = [predictor.next_token(row[None, :t])[0, row[t]] for t in range(int(length))]
        assert float(sum(steps, torch.tensor(0.0))) == pytest.approx(float(expected), rel=1e-4)
    assert deviation_from_one(predictor, np.array([3, 4, lm.end, 5, 6, lm.end]), 8) < 1e-5


def test_initial_embeddings_are_as_large_as_asked(text):
    tokenizer = prepare(text).tokenizer
    small, large = (LSTMLM(LSTMOptions(init_scale=x), tokenizer, seed=1) for x in (1.0, 4.0))
    torch.testing.assert_close(large.params.words, 4 * small.params.words)


def test_windows_make_no_difference(lm, monkeypatch):
    tokens = torch.randint(
        0, lm.tokenizer.size, (2, 40), generator=torch.Generator().manual_seed(1)
    )
    whole = lm.predictor().log_prob(tokens)
    monkeypatch.setattr("bighmm.lm.baselines.neural.WINDOW", 7)
    torch.testing.assert_close(lm.predictor().log_prob(tokens), whole)


@pytest.mark.parametrize("length, rows", [(5, 2), (11, 2), (40, 2), (41, 3), (41, 0), (100, 50)])
def test_parts_of_a_stream_side_by_side_make_no_difference(lm, monkeypatch, length, rows):
    size, generator = lm.tokenizer.size, torch.Generator().manual_seed(1)
    tokens = torch.randint(0, size, (length,), generator=generator)
    whole = lm.predictor().log_prob(tokens[None]).sum()
    monkeypatch.setattr("bighmm.lm.baselines.neural.WINDOW", 7)
    monkeypatch.setattr("bighmm.ops.memory.LOGITS", 7 * size * rows)
    torch.testing.assert_close(lm.predictor().log_prob_of_stream(tokens), whole)


def test_conventions(lm, text):
    corpus = prepare(text)
    tokens = np.asarray(corpus.split("test")).astype(np.int64)
    carried = lm.perplexity(corpus)
    assert carried.convention == "carry" and carried.tokens == len(tokens)
    one = lm.predictor().log_prob(torch.from_numpy(tokens)[None])
    assert carried.log_prob == pytest.approx(float(one))
    anew = lm.perplexity(corpus, convention="reset")
    bounds = np.flatnonzero(tokens == lm.end) + 1
    parts = [torch.from_numpy(part)[None] for part in np.split(tokens, bounds) if len(part)]
    each = sum(float(lm.predictor().log_prob(part)) for part in parts)
    assert anew.log_prob == pytest.approx(each, rel=1e-5)
    assert anew.log_prob != pytest.approx(carried.log_prob, rel=1e-6)


def test_saved_and_loaded(lm, tmp_path):
    lm.save_pretrained(tmp_path / "model")
    again = open_model(tmp_path / "model")
    rows = torch.tensor([[3, 4, 5]])
    assert torch.equal(again.predictor().log_prob(rows), lm.predictor().log_prob(rows))
    with (tmp_path / "model" / "model.safetensors").open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"zzzz")
    with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
        open_model(tmp_path / "model")


def arguments(text, family, run, *more):
    small = ["--width", "8", "--epochs", "4", "--batch", "4", "--window", "8", "--lr", "0.01"]
    return ["train", "--data", str(text), "--family", family, *small, "--out", str(run), *more]


@pytest.mark.parametrize("family", KINDS)
def test_training_lowers_the_loss_and_resumes_bit_by_bit(
    text, family, tmp_path, capsys, monkeypatch
):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    main(arguments(text, family, whole))
    found = losses(whole)
    assert np.mean(found[-10:]) < 0.95 * np.mean(found[:10])
    result = json.loads((whole / "result.json").read_text())
    assert result["test"]["perplexity"] < 1.1 * result["test"]["unigram_perplexity"]

    from bighmm.train import loop

    steps = iter(range(10**9))
    run = loop.Training.run
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as stopped:
        patch.setattr(loop.Training, "run", lambda self, _: run(self, lambda: next(steps) >= 20))
        main(arguments(text, family, parts))
    assert stopped.value.code == 130 and len(losses(parts)) == 21
    main(["train", "--resume", "--out", str(parts)])
    assert losses(parts) == found
    capsys.readouterr()
    main(["eval", str(parts), "--check-normalised", "--reset", "--json"])
    assert json.loads(capsys.readouterr().out)["convention"] == "reset"


def test_samples(lm):
    predictor = lm.predictor()
    generator = torch.Generator().manual_seed(0)
    assert predictor.sample(3, length=5, prefix=[4], generator=generator).shape == (3, 5)
    drawn = predictor.sample(2, generator=generator, max_length=50)
    assert len(drawn) == 2 and drawn.shape[1] <= 50
    drawn = predictor.sample(4000, length=1, prefix=[3], generator=generator).view(-1)
    shares = torch.bincount(drawn, minlength=lm.tokenizer.size) / 4000
    assert (shares - predictor.next_token(torch.tensor([[3]])).exp()[0]).abs().max() < 0.03


@pytest.mark.parametrize("wrong", [{"width": 0}, {"dropout": 1.0}, {"order": 1}, {"layers": 0}])
def test_wrong_options(wrong, text):
    with pytest.raises(ValueError, match="must be "):
        FeedForwardLM(FeedForwardOptions(**wrong), prepare(text).tokenizer)


def test_ids_outside_the_vocabulary(lm):
    with pytest.raises(ValueError, match="not in the vocabulary"):
        lm.predictor().log_prob(torch.tensor([[10_000]]))


def test_dropout_is_a_function_of_the_key(lm):
    x, key = torch.ones(40, 50), torch.tensor(7)
    dropped = lm.params.drop(x, key, 0)
    assert torch.equal(dropped, lm.params.drop(x, key, 0))
    for other in (lm.params.drop(x, key, 1), lm.params.drop(x, key + 1, 0)):
        assert 0.3 < float(((dropped == 0) == (other == 0)).float().mean()) < 0.9
    assert 0.25 < float((dropped == 0).float().mean()) < 0.35
    torch.testing.assert_close(dropped.max(), torch.tensor(1 / 0.7))
    assert torch.equal(lm.params.drop(x, None, 0), x)
