"""The AWD-LSTM: its masks, its penalties, its gradient, and training through the same loop."""

import dataclasses
import json

import numpy as np
import pytest
import torch
from torch.nn import functional

from bighmm.base import randomness
from bighmm.cli.main import main
from bighmm.data.corpus import prepare
from bighmm.lm.baselines import find
from bighmm.lm.baselines.awd_lstm import AWDLSTM, AWDLSTMLM, SCALE, mask
from bighmm.lm.evaluation import deviation_from_one
from bighmm.lm.opening import open_model
from bighmm.lm.options import AWDLSTMOptions
from bighmm.train.losses import CrossEntropy, Window
from watching import losses

TINY = AWDLSTMOptions(width=7, embedding=5)
PLAIN = {f"dropout{x}": 0.0 for x in ("", "_words", "_weights", "_input", "_between")}
KEY = randomness.key(1, 0)


@pytest.fixture
def lm(text):
    return AWDLSTMLM(TINY, prepare(text).tokenizer, seed=1)


def network(vocabulary=11, **changes):
    torch.manual_seed(0)
    made = AWDLSTM(dataclasses.replace(TINY, **changes), vocabulary).double()
    torch.nn.init.normal_(made.words)
    return made


def window(lengths=(6, 6, 4), vocabulary=11):
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(0, vocabulary, (len(lengths), max(lengths)), generator=generator)
    return Window(ids, torch.tensor(lengths))


@pytest.mark.parametrize("vocabulary, millions", [(10_000, 24.2), (33_278, 33.6)])
def test_sizes_of_the_paper(vocabulary, millions):
    kind = find("awd-lstm")
    with torch.device("meta"):
        made = kind.model.network(kind.options(), vocabulary)
    assert [layer.hidden_size for layer in made.layers] == [1150, 1150, 400]
    assert round(sum(p.numel() for p in made.parameters()) / 1e6, 1) == millions


def test_a_mask_is_a_function_of_key_and_place():
    one = mask(KEY, 1, (40, 51), 0.3, torch.float64)
    assert torch.equal(one, mask(KEY, 1, (40, 51), 0.3, torch.float64))
    for other in (
        mask(KEY, 2, (40, 51), 0.3, one.dtype),
        mask(KEY + 1, 1, (40, 51), 0.3, one.dtype),
    ):
        assert 0.4 < float((one == other).double().mean()) < 0.75
    assert 0.27 < float((one == 0).double().mean()) < 0.33
    assert sorted(set(one.flatten().tolist())) == [0, 1 / 0.7]


@pytest.mark.parametrize("share", [1e-9, 1 - 1e-9])
def test_shares_next_to_nothing_and_everything(share):
    kept = float((mask(KEY, 0, (100, 100), share, torch.float64) > 0).double().mean())
    assert kept == pytest.approx(1 - share, abs=1e-3)


def test_masks_are_locked_within_a_window_and_differ_between_rows(monkeypatch):
    """The inputs of every layer and the outputs are zero at all words of a window or at none."""
    net, seen = network(dropout_words=0.0), []
    plain = torch.lstm
    monkeypatch.setattr(torch, "lstm", lambda x, *more: (seen.append(x), plain(x, *more))[1])
    ids = window((6, 6, 6)).ids
    hidden, _ = net.hidden(ids, net.begin(3, 0), KEY)
    seen.append(net.drop(hidden, KEY, 0).transpose(0, 1))
    assert [x.shape for x in seen] == [(6, 3, 5), (6, 3, 7), (6, 3, 7), (6, 3, 5)]
    for x in seen:
        zero = x == 0
        assert torch.equal(zero, zero[:1].expand_as(zero))
        assert 0 < int(zero[0].sum()) < zero[0].numel()
        assert not torch.equal(zero[0, 0], zero[0, 1])
    again, _ = net.hidden(ids, net.begin(3, 0), randomness.key(1, 1))
    assert not torch.equal(seen[0] == 0, seen[4] == 0) and not torch.equal(again, hidden)


def test_whole_words_are_dropped():
    net = network(vocabulary=50, **(PLAIN | {"dropout_words": 0.4}))
    ids = torch.arange(50).repeat(2, 1)
    found = net._inputs(ids.t(), KEY)
    dropped = (found == 0).all(2)
    assert torch.equal(dropped[:, 0], dropped[:, 1]) and 8 < int(dropped[:, 0].sum()) < 32
    kept = ~dropped[:, 0]
    torch.testing.assert_close(found[kept, 0], net.words[kept] / 0.6)
    torch.testing.assert_close(net.logits(torch.eye(5).double()), net.words.t() + net.bias)


def test_recurrent_weights_and_only_they_are_dropped():
    net = network(width=40, **(PLAIN | {"dropout_weights": 0.5}))
    for i, layer in enumerate(net.layers):
        inner, recurrent, *biases = net.weights(i, KEY, torch.float64)
        assert inner is layer.weight_ih_l0 and biases == [layer.bias_ih_l0, layer.bias_hh_l0]
        zero = recurrent == 0
        assert 0.4 < float(zero.double().mean()) < 0.6
        torch.testing.assert_close(recurrent[~zero], 2 * layer.weight_hh_l0[~zero])
        assert net.weights(i, None, torch.float64)[1] is layer.weight_hh_l0
        assert not torch.equal(zero, net.weights(i, KEY + 1, torch.float64)[1] == 0)
    found, _ = net.hidden(window().ids, net.begin(3, 0), KEY)
    found[:, -1].sum().backward()
    for i, layer in enumerate(net.layers):
        gone = net.weights(i, KEY, torch.float64)[1] == 0
        assert (layer.weight_hh_l0.grad[gone] == 0).all() and layer.weight_hh_l0.grad.any()


def test_the_last_of_a_row_of_layers_with_no_masks_is_torchs_own():
    net = network(**PLAIN)
    whole, x = window((6, 6, 6)), functional.embedding(window((6, 6, 6)).ids, net.words)
    for layer in net.layers:
        x = layer(x.transpose(0, 1))[0].transpose(0, 1)
    for key in (None, KEY):
        torch.testing.assert_close(net.hidden(whole.ids, net.begin(3, 0), key)[0], x)


def by_hand(net, batch, state):
    """The objective of the paper, word by word."""
    inner = {name: t for name, t in state.items() if name != "last"}
    previous = torch.cat([state["last"].unsqueeze(1), batch.ids[:, :-1]], 1)
    hidden, _ = net.hidden(previous, inner, KEY)
    dropped = net.drop(hidden, KEY, 0)
    log_probs = functional.linear(dropped, net.words, net.bias).log_softmax(2)
    nats, sizes, changes = [], [], []
    for row, length in enumerate(batch.lengths.tolist()):
        for t in range(length):
            nats.append(-log_probs[row, t, batch.ids[row, t]])
            sizes.append(dropped[row, t].square().mean())
            if t:
                changes.append((hidden[row, t] - hidden[row, t - 1]).square().mean())
    nats, sizes, changes = (torch.stack(each).mean() for each in (nats, sizes, changes))
    return nats, nats + 2.0 * sizes + 1.0 * changes


def test_the_loss_is_nats_and_its_gradient_that_of_the_penalties_too():
    net, batch = network(), window()
    loss = CrossEntropy(net, end=0)
    state = loss.initial_state(3)
    found, _ = loss(batch, state, KEY)
    nats, objective = by_hand(net, batch, state)
    torch.testing.assert_close(found, nats)
    parameters = list(net.parameters())
    expected = torch.autograd.grad(objective, parameters)
    torch.testing.assert_close(torch.autograd.grad(found, parameters), expected)


def test_gradient_by_finite_differences():
    """Of nats and penalties, in every direction of every parameter, under all masks."""
    net, batch = network(width=3, embedding=2, vocabulary=5), window((4, 3), vocabulary=5)
    state = CrossEntropy(net, end=0).initial_state(2)
    parameters = list(net.parameters())
    gradient = torch.autograd.grad(CrossEntropy(net, end=0)(batch, state, KEY)[0], parameters)
    for parameter, found in zip(parameters, gradient, strict=True):
        flat = parameter.data.view(-1)
        for i in range(0, len(flat), 3):
            values, own = [], float(flat[i])
            for step in (1e-5, -1e-5):
                flat[i] = own + step
                values.append(float(by_hand(net, batch, state)[1].detach()))
            flat[i] = own
            assert float(found.view(-1)[i]) == pytest.approx(
                (values[0] - values[1]) / 2e-5, rel=1e-4, abs=1e-7
            )


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_layers_in_another_type(dtype):
    """The scale inside cancels out; the type of all that is seen outside stays."""
    net, batch = network().float(), window()
    loss = CrossEntropy(net, end=0)
    plain, after = loss(batch, loss.initial_state(3), KEY)
    expected = torch.autograd.grad(plain, list(net.parameters()))
    net.training_dtype = dtype
    found, other = loss(batch, loss.initial_state(3), KEY)
    gradient = torch.autograd.grad(found, list(net.parameters()))
    close = {"rtol": 1e-4, "atol": 1e-6} if dtype == torch.float64 else {"rtol": 0.1, "atol": 0.02}
    torch.testing.assert_close((found, gradient, other), (plain, expected, after), **close)
    assert all(t.dtype == after[name].dtype for name, t in other.items())
    assert SCALE > 1


def test_answers_do_not_depend_on_the_window(lm, monkeypatch):
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, lm.tokenizer.size, (60,), generator=generator)
    whole = lm.predictor().log_prob_of_stream(tokens)
    for length in (1, 7, 60):
        monkeypatch.setattr("bighmm.lm.baselines.neural.WINDOW", length)
        torch.testing.assert_close(lm.predictor().log_prob_of_stream(tokens), whole)


def test_answers_agree_with_each_other(lm, tmp_path):
    predictor = lm.predictor()
    row = torch.tensor([[3, 4, lm.end, 5]])
    steps = [predictor.next_token(row[:, :t])[0, row[0, t]] for t in range(4)]
    assert float(sum(steps)) == pytest.approx(float(predictor.log_prob(row)), rel=1e-5)
    assert deviation_from_one(predictor, np.array([3, 4, lm.end, 5, 6, lm.end]), 8) < 1e-5
    lm.save_pretrained(tmp_path / "model")
    again = open_model(tmp_path / "model")
    assert torch.equal(again.predictor().log_prob(row), predictor.log_prob(row))
    assert len([name for name in lm.params.state_dict() if "words" in name]) == 1


def arguments(text, run, *more):
    small = ["--width", "9", "--embedding", "8", "--epochs", "4", "--batch", "4", "--window", "8"]
    kind = ["--family", "awd-lstm", "--batches", "rotated", "--averaging", "0.9", "--lr", "0.01"]
    return ["train", "--data", str(text), *kind, *small, "--out", str(run), *more]


def test_training_lowers_the_loss_and_resumes_bit_by_bit(text, tmp_path, ask, bighmm, monkeypatch):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    main(arguments(text, whole))
    found = losses(whole)
    assert np.mean(found[-10:]) < 0.95 * np.mean(found[:10])

    from bighmm.train import loop

    steps, run = iter(range(10**9)), loop.Training.run
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as stopped:
        patch.setattr(loop.Training, "run", lambda self, _: run(self, lambda: next(steps) >= 20))
        main(arguments(text, parts))
    assert stopped.value.code == 130 and len(losses(parts)) == 21
    main(["train", "--resume", "--out", str(parts)])
    assert losses(parts) == found
    results = [json.loads((run / "result.json").read_text()) for run in (whole, parts)]
    assert results[0]["test"] == results[1]["test"]
    models = [(run / "model" / "model.safetensors").read_bytes() for run in (whole, parts)]
    assert models[0] == models[1]

    evaluated = ask("eval", parts, "--check-normalised")
    assert evaluated["convention"] == "carry"
    assert evaluated["perplexity"] == pytest.approx(results[0]["test"]["perplexity"])
    assert bighmm("score", parts, stdin=b"the name of the file\n").status == 0
    assert bighmm("next", parts, "the name").status == 0
    assert bighmm("sample", parts, "--n", "2").status == 0


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"dropout_weights": 1.0}, r"dropout_weights must be in \[0, 1\), not 1.0"),
        ({"dropout_input": -0.1}, "dropout_input must be"),
        ({"embedding": 0}, "embedding must be at least 1, not 0"),
        ({"layers": 0}, "layers must be from 1 to 256"),
        ({"activation_penalty": -1.0}, "activation_penalty must be finite and not below 0"),
        ({"change_penalty": float("inf")}, "change_penalty must be finite"),
    ],
)
def test_wrong_options(wrong, message, text):
    with pytest.raises(ValueError, match=message):
        AWDLSTMLM(dataclasses.replace(TINY, **wrong), prepare(text).tokenizer)
