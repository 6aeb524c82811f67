"""The recurrent HMM: its first stage is an HMM, every stage is what it says, training and files."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from bighmm.base import randomness
from bighmm.cli.main import main
from bighmm.data.corpus import prepare
from bighmm.lm.baselines import find
from bighmm.lm.baselines.recurrent_hmm import RecurrentHMM, RecurrentHMMLM
from bighmm.lm.evaluation import deviation_from_one
from bighmm.lm.opening import open_model
from bighmm.lm.options import STAGES, RecurrentHMMOptions
from bighmm.train.losses import CrossEntropy, Window
from watching import losses

TINY = RecurrentHMMOptions(width=5, embedding=4)
KEY = randomness.key(1, 0)


def network(stage, vocabulary=7, **changes):
    torch.manual_seed(0)
    options = dataclasses.replace(TINY, **{"stage": stage, **changes})
    return RecurrentHMM(options, vocabulary).double()


def model(stage, text, **changes):
    options = dataclasses.replace(TINY, **{"stage": stage, **changes})
    return RecurrentHMMLM(options, prepare(text).tokenizer, seed=1)


def some_ids(*shape, vocabulary=7):
    return torch.randint(0, vocabulary, shape, generator=torch.Generator().manual_seed(3))


def log_probs(net, ids, end=0):
    """log p(every word | those before it), (B, T, V)."""
    previous = torch.cat([torch.full((len(ids), 1), end), ids[:, :-1]], 1)
    return net(previous, net.begin(len(ids), end))[0].log_softmax(2)


def of_rows(net, ids):
    return log_probs(net, ids).gather(2, ids.unsqueeze(2)).sum((1, 2))


@pytest.mark.parametrize(
    "stage, width, millions",
    [("hmm", 900, 9.8), ("late-emissions", 475, 10.0), ("tanh", 475, 10.0)],
)
def test_ten_million_weights(stage, width, millions):
    kind = find("recurrent-hmm")
    with torch.device("meta"):
        made = kind.model.network(kind.options(stage=stage, width=width), 10_000)
    assert round(sum(p.numel() for p in made.parameters()) / 1e6, 1) == millions
    assert kind.options().stage == "late-emissions" and kind.options().width == 475


@pytest.mark.parametrize("scale", [1.0, 8.0])
def test_the_first_stage_is_an_hmm(text, scale):
    lm = model("hmm", text, init_scale=scale)
    lm.params.double()
    size = lm.tokenizer.size
    ids = some_ids(4, 19, vocabulary=size)
    ids[:, 6] = lm.end  # carried over
    hmm, predictor = lm.hmm(), lm.predictor()
    torch.testing.assert_close(predictor.log_prob(ids), hmm.log_prob(ids), rtol=1e-11, atol=1e-9)
    torch.testing.assert_close(predictor.next_token(ids), hmm.next_token(ids), rtol=1e-9, atol=1e-9)
    empty = ids[:1, :0]
    torch.testing.assert_close(
        predictor.next_token(empty), hmm.next_token(empty), rtol=1e-9, atol=1e-9
    )


def test_the_first_stage_has_the_gradient_of_an_hmm():
    net, ids = network("hmm"), some_ids(3, 9)
    start, transition = net.start.log_softmax(0), net.transitions.log_softmax(1)
    emission, total = net.words.log_softmax(0).t(), 0.0
    for row in ids.tolist():  # the forward algorithm in log space
        forward = start + emission[:, row[0]]
        for word in row[1:]:
            forward = (forward.unsqueeze(1) + transition).logsumexp(0) + emission[:, word]
        total = total + forward.logsumexp(0)
    found = of_rows(net, ids).sum()
    torch.testing.assert_close(found, total)
    parameters = list(net.parameters())
    expected = torch.autograd.grad(total, parameters)
    torch.testing.assert_close(torch.autograd.grad(found, parameters), expected)


def by_hand(net, row):
    """log p of a row, word by word, as the module's docstring has it."""
    stage, w, o = net.stage, net.transitions, net.words
    step, vector, total = STAGES.index(stage), net.first(), 0.0
    mixes, reads = step < 3, step < 4
    for t, word in enumerate(row):
        if t > 0:
            last, belief = row[t - 1], vector
            if reads:
                belief = vector * (o.softmax(0)[last] if mixes else o[last].exp())
                belief = belief / belief.sum()
            g = net.feeding(net.inputs[last]) if step else torch.zeros(())
            if step < 2:
                vector = sum(belief[i] * (w[i] + g).softmax(0) for i in range(len(w)))
            elif stage == "gated":
                update, reset, _ = ((vector @ w + g).sigmoid()).chunk(3)
                candidate = torch.tanh((reset * vector) @ w.chunk(3, 1)[2] + g.chunk(3)[2])
                vector = update * vector + (1 - update) * candidate
            else:
                last_step = {"sigmoid": torch.sigmoid, "tanh": torch.tanh}
                vector = last_step.get(stage, lambda x: x.softmax(0))(belief @ w + g)
        if mixes:
            total = total + (o.softmax(0)[word] * vector).sum().log()
        else:
            total = total + (o @ vector + net.bias).log_softmax(0)[word]
    return total


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_by_hand(stage):
    net, ids = network(stage), some_ids(2, 7)
    expected = torch.stack([by_hand(net, row) for row in ids.tolist()])
    torch.testing.assert_close(of_rows(net, ids), expected)
    if STAGES.index(stage) <= STAGES.index("softmax"):  # its vector is a distribution
        vectors, _ = net.hidden(ids, net.begin(2, 0), None)
        torch.testing.assert_close(vectors.sum(2), torch.ones(2, 7).double())


@pytest.mark.parametrize("stage", STAGES)
def test_gradient_by_finite_differences(stage):
    net = network(stage, vocabulary=4, width=3, embedding=2)
    window = Window(some_ids(2, 4, vocabulary=4), torch.tensor([4, 3]))
    loss = CrossEntropy(net, end=0)
    parameters = list(net.parameters())

    def value():
        return loss(window, loss.initial_state(2), KEY)[0]

    found = torch.autograd.grad(value(), parameters)
    for parameter, gradient in zip(parameters, found, strict=True):
        flat = parameter.data.view(-1)
        for i in range(0, len(flat), 4):
            values, own = [], float(flat[i])
            for change in (1e-5, -1e-5):
                flat[i] = own + change
                values.append(float(value().detach()))
            flat[i] = own
            slope = (values[0] - values[1]) / 2e-5
            assert float(gradient.reshape(-1)[i]) == pytest.approx(slope, rel=1e-4, abs=1e-8)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("scale", [0.0, 60.0])
def test_extreme_parameters_give_numbers(stage, scale):
    net = network(stage, init_scale=scale).float()
    if hasattr(net, "feeding"):
        torch.nn.init.uniform_(net.feeding.weight, -scale, scale)
    loss = CrossEntropy(net, end=0)
    found, after = loss(Window(some_ids(3, 40), torch.full((3,), 40)), loss.initial_state(3), KEY)
    gradient = torch.autograd.grad(found, list(net.parameters()), allow_unused=True)
    assert found.isfinite() and after["vector"].isfinite().all()
    assert all(g.isfinite().all() for g in gradient)


@pytest.mark.parametrize("stage", ["hmm", "late-emissions", "gated"])
def test_answers_do_not_depend_on_the_window(text, stage, monkeypatch):
    lm = model(stage, text)
    tokens = some_ids(60, vocabulary=lm.tokenizer.size)
    whole = lm.predictor().log_prob_of_stream(tokens)
    for length in (1, 7, 60):
        monkeypatch.setattr("bighmm.lm.baselines.neural.WINDOW", length)
        torch.testing.assert_close(lm.predictor().log_prob_of_stream(tokens), whole)


def test_dropout_is_a_function_of_the_key_and_leaves_mixtures_whole():
    ids = some_ids(3, 9)

    def found(stage, key):
        net = network(stage, dropout=0.5)
        return net(ids, net.begin(3, 0), key)[0]

    for stage in STAGES[1:]:
        assert torch.equal(found(stage, KEY), found(stage, KEY))
        assert not torch.equal(found(stage, KEY), found(stage, KEY + 1))
    assert torch.equal(found("hmm", KEY), found("hmm", None))
    for stage in STAGES:
        net, x = network(stage, dropout=0.5), torch.ones(2, 50, 5)
        dropped = bool((net.drop(x, KEY, 0) == 0).any())
        assert dropped == (STAGES.index(stage) >= STAGES.index("late-emissions"))


@pytest.mark.parametrize("stage", STAGES)
def test_files_and_sums(text, stage, tmp_path):
    lm = model(stage, text)
    row = torch.tensor([[3, 4, lm.end, 5]])
    assert deviation_from_one(lm.predictor(), np.array([3, 4, lm.end, 5, 6, lm.end]), 8) < 1e-5
    lm.save_pretrained(tmp_path / "model")
    again = open_model(tmp_path / "model")
    assert torch.equal(again.predictor().log_prob(row), lm.predictor().log_prob(row))
    if stage != "hmm":
        with pytest.raises(ValueError, match=f"of the stage {stage} is no HMM"):
            lm.hmm()


def arguments(text, run, *more):
    small = ["--width", "9", "--embedding", "8", "--epochs", "4", "--batch", "4", "--window", "8"]
    kind = ["--family", "recurrent-hmm", "--batches", "rotated", "--lr", "0.02"]
    return ["train", "--data", str(text), *kind, *small, "--out", str(run), *more]


@pytest.mark.parametrize("stage", ["hmm", "late-transitions", "tanh"])
def test_training_lowers_the_loss(text, tmp_path, stage):
    main(arguments(text, tmp_path / "run", "--stage", stage))
    found = losses(tmp_path / "run")
    assert np.mean(found[-10:]) < 0.95 * np.mean(found[:10])


def test_training_resumes_bit_by_bit_and_commands_answer(text, tmp_path, ask, bighmm, monkeypatch):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    main(arguments(text, whole, "--dropout", "0.2"))

    from bighmm.train import loop

    steps, run = iter(range(10**9)), loop.Training.run
    with monkeypatch.context() as patch, pytest.raises(SystemExit) as stopped:
        patch.setattr(loop.Training, "run", lambda self, _: run(self, lambda: next(steps) >= 20))
        main(arguments(text, parts, "--dropout", "0.2"))
    assert stopped.value.code == 130 and len(losses(parts)) == 21
    main(["train", "--resume", "--out", str(parts)])
    assert losses(parts) == losses(whole)
    models = [(run / "model" / "model.safetensors").read_bytes() for run in (whole, parts)]
    assert models[0] == models[1]

    result = json.loads((whole / "result.json").read_text())
    evaluated = ask("eval", whole, "--check-normalised")
    assert evaluated["convention"] == "carry"
    assert evaluated["perplexity"] == pytest.approx(result["test"]["perplexity"])
    assert bighmm("score", whole, stdin=b"the name of the file\n").status == 0
    assert bighmm("next", whole, "the name").status == 0
    assert bighmm("sample", whole, "--n", "2").status == 0


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"stage": "lstm"}, "stage must be one of hmm, word-transitions, .* gated, not 'lstm'"),
        ({"embedding": 0}, "embedding must be at least 1, not 0"),
        ({"width": 0}, "width must be at least 1"),
        ({"init_scale": -1.0}, "init_scale must be finite and not below 0"),
    ],
)
def test_wrong_options(wrong, message, text):
    with pytest.raises(ValueError, match=message):
        RecurrentHMMLM(dataclasses.replace(TINY, **wrong), prepare(text).tokenizer)
