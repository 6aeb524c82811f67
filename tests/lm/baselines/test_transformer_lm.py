"""The transformer as a language model: windows, answers, training, resuming, and as a backbone."""

import json

import numpy as np
import pytest
import torch

from bighmm.cli.main import main
from bighmm.data.corpus import prepare
from bighmm.lm.baselines.transformer import TransformerLM, TransformerOptions
from bighmm.lm.evaluation import deviation_from_one
from bighmm.lm.opening import open_model
from bighmm.model.networks import load_own, load_pretrained
from bighmm.train.losses import CrossEntropy, Window
from watching import losses


@pytest.fixture(params=["llama", "gpt2"])
def lm(request, text):
    options = TransformerOptions(width=8, layers=2, heads=2, context=6, style=request.param)
    lm = TransformerLM(options, prepare(text).tokenizer, seed=1)
    with torch.no_grad():
        for parameter in lm.params.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    return lm


def some_tokens(lm, rows, length):
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, lm.tokenizer.size, (rows, length), generator=generator)


@pytest.mark.parametrize("window", [1, 2, 5, 7])
def test_windows_make_no_difference(lm, monkeypatch, window):
    tokens = some_tokens(lm, 2, 23)
    whole = lm.predictor().log_prob(tokens)
    monkeypatch.setattr("bighmm.lm.baselines.neural.WINDOW", window)
    torch.testing.assert_close(lm.predictor().log_prob(tokens), whole, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("length, rows", [(2, 2), (8, 2), (40, 2), (41, 3), (41, 0), (100, 50)])
def test_parts_of_a_stream_side_by_side_make_no_difference(lm, monkeypatch, length, rows):
    (tokens,) = some_tokens(lm, 1, length)
    whole = lm.predictor().log_prob(tokens[None]).sum()
    monkeypatch.setattr("bighmm.lm.baselines.neural.WINDOW", 3)
    monkeypatch.setattr("bighmm.ops.memory.LOGITS", 3 * lm.tokenizer.size * rows)
    found = lm.predictor().log_prob_of_stream(tokens)
    torch.testing.assert_close(found, whole, rtol=1e-5, atol=1e-4)


def test_windows_make_no_difference_in_training(lm):
    entropy, key = CrossEntropy(lm.params, lm.end), torch.tensor(0)
    tokens = some_tokens(lm, 2, 12)
    whole, _ = entropy(Window(tokens, torch.tensor([12, 12])), entropy.initial_state(2), key)
    carried, parts = entropy.initial_state(2), []
    for part in tokens.split(4, dim=1):
        loss, carried = entropy(Window(part, torch.tensor([4, 4])), carried, key)
        parts.append(loss)
    torch.testing.assert_close(torch.stack(parts).mean(), whole, rtol=1e-5, atol=1e-5)


def test_the_last_words_decide(lm):
    """Six words count, a seventh does not."""
    tokens = some_tokens(lm, 1, 20)
    predictor = lm.predictor()
    found = predictor.next_token(tokens)
    changed = tokens.clone()
    changed[0, 13] = (tokens[0, 13] + 1) % lm.tokenizer.size
    torch.testing.assert_close(predictor.next_token(changed), found, rtol=1e-4, atol=1e-5)
    changed[0, 14] = (tokens[0, 14] + 1) % lm.tokenizer.size
    assert (predictor.next_token(changed) - found).abs().max() > 1e-3
    torch.testing.assert_close(
        lm.params(tokens, lm.params.begin(1, lm.end))[0][:, -1].log_softmax(1),
        lm.params(tokens[:, 14:], lm.params.begin(1, lm.end))[0][:, -1].log_softmax(1),
        rtol=1e-4,
        atol=1e-5,
    )


def test_answers_agree_with_each_other(lm):
    predictor = lm.predictor()
    rows, lengths = some_tokens(lm, 3, 9), torch.tensor([9, 4, 0])
    for row, length, expected in zip(rows, lengths, predictor.log_prob(rows, lengths), strict=True):
        steps = [predictor.next_token(row[None, :t])[0, row[t]] for t in range(int(length))]
        assert float(sum(steps, torch.tensor(0.0))) == pytest.approx(float(expected), rel=1e-4)
    assert deviation_from_one(predictor, rows.flatten().numpy(), 8) < 1e-5
    drawn = predictor.sample(3, length=9, prefix=[4], generator=torch.Generator().manual_seed(0))
    assert drawn.shape == (3, 9)


def test_saved_and_loaded(lm, tmp_path):
    """Its parts give the same answers: a text begins with one end mark, and nothing before it."""
    lm.save_pretrained(tmp_path / "run" / "model")
    again = open_model(tmp_path / "run")
    rows = some_tokens(lm, 2, 15)
    log_probs = lm.predictor().log_prob(rows)
    assert torch.equal(again.predictor().log_prob(rows), log_probs)
    for parts in (load_own(tmp_path / "run" / "model"), load_pretrained(tmp_path / "run")):
        assert parts.words is parts.head
        previous = torch.cat([torch.full((2, 1), lm.end), rows[:, :-1]], dim=1)
        logits = parts.backbone(parts.words[previous]) @ parts.head.T
        found = logits.log_softmax(2).gather(2, rows.unsqueeze(2)).sum((1, 2))
        torch.testing.assert_close(found.double(), log_probs, rtol=1e-5, atol=1e-4)
    (tmp_path / "run" / "model" / "model.safetensors").write_bytes(b"nothing")
    for load in (open_model, load_own, load_pretrained):
        with pytest.raises(ValueError, match=r"model\.safetensors is damaged"):
            load(tmp_path / "run")


def test_another_family_is_not_a_backbone(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"family": "lstm"}))
    with pytest.raises(ValueError, match="is of the family lstm, not transformer"):
        load_pretrained(tmp_path)


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"heads": 3}, "multiple of the 3 heads"),
        ({"context": 0}, "context must be from 1"),
        ({"layers": 0}, "layers must be from 1"),
        ({"dropout": 1.0}, "dropout in"),
        ({"style": "bert"}, "use llama or gpt2"),
    ],
)
def test_wrong_options(wrong, message, text):
    with pytest.raises(ValueError, match=message):
        TransformerLM(TransformerOptions(**wrong), prepare(text).tokenizer)


@pytest.mark.parametrize("batches", ["streams", "windows"])
def test_training_lowers_the_loss_and_resumes_bit_by_bit(
    text, batches, tmp_path, capsys, monkeypatch
):
    sizes = ["--width", "16", "--layers", "2", "--heads", "2", "--context", "6"]
    steps = ["--epochs", "4", "--batch", "4", "--window", "8", "--lr", "0.01", "--dropout", "0.1"]
    command = ["train", "--data", str(text), "--family", "transformer", *sizes, *steps]
    command += ["--batches", batches, "--out"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    main([*command, str(whole)])
    found = losses(whole)
    assert np.mean(found[-10:]) < 0.9 * np.mean(found[:10])
    result = json.loads((whole / "result.json").read_text())
    assert result["test"]["perplexity"] < result["test"]["unigram_perplexity"]

    from bighmm.train import loop

    asked = iter(range(10**9))
    run = loop.Training.run
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as stopped:
        patch.setattr(loop.Training, "run", lambda self, _: run(self, lambda: next(asked) >= 20))
        main([*command, str(parts)])
    assert stopped.value.code == 130 and len(losses(parts)) == 21
    main(["train", "--resume", "--out", str(parts)])
    assert losses(parts) == found
    capsys.readouterr()
    main(["eval", str(parts), "--check-normalised", "--reset", "--json"])
    assert json.loads(capsys.readouterr().out)["convention"] == "reset"
    main(["sample", str(parts), "--n", "2", "--prefix", "w1 w2"])
    assert capsys.readouterr().out.strip()
