"""Calibration: what the factors mean, that they are found, kept in files, and keep sums at one."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from bighmm.base.files import write_sealed
from bighmm.base.json_files import read_object
from bighmm.data.corpus import prepare
from bighmm.data.tokenizers import Words
from bighmm.lm.calibrating import calibrate
from bighmm.lm.evaluation import deviation_from_one
from bighmm.lm.hmmlm import HMMLM
from bighmm.lm.mixing import mix
from bighmm.lm.opening import open_hmm, open_model
from bighmm.model.calibration import UNCALIBRATED, Calibration
from bighmm.model.params.neural import NeuralOptions
from bighmm.model.params.scalar import ScalarOptions
from bighmm.model.support import Blocked, Dense
from bighmm.train.recipe import from_dict
from bighmm.train.run import train_run

WORDS = [f"w{i}" for i in range(9)]
FACTORS = Calibration(blocks=0.7, moves=1.3, words=0.6)


def model(seed=0, states=12, blocked=True, **options):
    tokenizer = Words.build([" ".join(WORDS)])
    size = tokenizer.size
    support = Blocked.of(torch.arange(size) % 4, states) if blocked else Dense(states, size)
    given = NeuralOptions(**{"width": 8, "init_scale": 0.7, **options})
    return HMMLM("neural", given, support, tokenizer, seed=seed)


def with_factors(lm, factors=FACTORS):
    lm.params.calibration = factors
    lm.clear_cache()
    return lm


def tempered(log_probs, factor, dim):
    return (log_probs * factor).log_softmax(dim)


@pytest.mark.parametrize("choosing", ["own", "leaving"])
def test_two_levels(choosing):
    lm = model(choosing=choosing)
    lm.params.double()
    plain = lm.hmm()
    found = with_factors(lm).hmm()
    matrix = plain.transitions.log_probs().view(12, 4, 3)
    blocks = matrix.logsumexp(2)
    expected = tempered(matrix - blocks.unsqueeze(2), 1.3, 2) + tempered(blocks, 0.7, 1).unsqueeze(
        2
    )
    torch.testing.assert_close(found.transitions.log_probs(), expected.view(12, 12))
    torch.testing.assert_close(found.start, plain.start)
    tables = {True: found.emission.new_full((12, 11), -torch.inf), False: None}
    tables[False] = tables[True].clone()
    for calibrated, hmm in ((True, found), (False, plain)):
        for word in range(11):
            states = hmm.support.states(torch.tensor([word]))[0]
            tables[calibrated][states, word] = hmm.emission[word]
    impossible = tables[False] == -torch.inf
    expected = tempered(tables[False].masked_fill(impossible, -1e300), 0.6, 1)
    torch.testing.assert_close(tables[True], expected.masked_fill(impossible, -torch.inf))


@pytest.mark.parametrize("transitions", ["flat", "table"])
def test_one_level(transitions):
    lm = model(transitions=transitions, blocked=False, emission="direct")
    lm.params.double()
    plain = lm.hmm()
    found = with_factors(lm).hmm()
    expected = tempered(plain.transitions.log_probs(), 1.3, 1)
    torch.testing.assert_close(found.transitions.log_probs(), expected)
    torch.testing.assert_close(found.emission, tempered(plain.emission, 0.6, 0))


@pytest.mark.parametrize("operands", ["float32", "bfloat16"])
@pytest.mark.parametrize("blocked", [True, False])
def test_next_words_sum_to_one(blocked, operands):
    lm = with_factors(model(blocked=blocked, width=16).to("cpu", operands))
    tokens = np.random.default_rng(1).integers(0, 11, 200)
    assert deviation_from_one(lm.predictor(), tokens) < 2e-6


@pytest.mark.parametrize("operands", ["float32", "bfloat16"])
def test_training_path_agrees(operands):
    """The likelihood with a gradient, which is computed by other code, has the same factors."""
    lm = with_factors(model(width=16).to("cpu", operands))
    tokens = torch.randint(0, 11, (5, 7), generator=torch.Generator().manual_seed(3))
    with_gradient = type(lm.hmm()).of(lm.params()).log_prob(tokens)
    assert with_gradient.requires_grad
    torch.testing.assert_close(with_gradient.detach(), lm.hmm().log_prob(tokens))


def test_planted_factors_are_found():
    """Text of a model, whose logits are then made too large."""
    lm = model(seed=2, init_scale=1.0)
    draw = torch.Generator().manual_seed(1)
    text = lm.hmm().sample(1, length=20_000, generator=draw)[0]
    with torch.no_grad():
        lm.params.blocks *= 2.0
        lm.params.block_bias *= 2.0
        lm.params.words *= 1.5
        lm.params.word_bias *= 1.5
    lm.clear_cache()
    found = calibrate(lm, text)
    assert found.after < found.before
    assert lm.perplexity(text).perplexity == pytest.approx(found.after)
    assert found.calibration.blocks == pytest.approx(1 / 2, rel=0.1)
    assert found.calibration.words == pytest.approx(1 / 1.5, rel=0.1)
    again = calibrate(lm, text)  # from the same beginning, whatever the factors are
    assert again == found


def test_in_files(tmp_path):
    lm = with_factors(model())
    lm.save_pretrained(tmp_path / "model")
    again = open_hmm(tmp_path / "model", "test")
    assert again.params.calibration == FACTORS
    torch.testing.assert_close(
        again.hmm().transitions.log_probs(), lm.hmm().transitions.log_probs()
    )
    with_factors(lm, UNCALIBRATED).save_pretrained(tmp_path / "plain")
    assert "calibration" not in json.loads((tmp_path / "plain" / "config.json").read_text())
    for wrong, reason in (({"blocks": 0.0}, "blocks"), ({"colour": 1.0}, "unknown field")):
        config = read_object(tmp_path / "model" / "config.json") | {"calibration": wrong}
        write_sealed(tmp_path / "model" / "config.json", config)
        with pytest.raises(ValueError, match=f"config.json is damaged: .*{reason}"):
            open_model(tmp_path / "model")


def test_mixtures(tmp_path):
    first, second = with_factors(model(1)), model(2, states=8)
    tokens = torch.randint(2, 11, (6, 5), generator=torch.Generator().manual_seed(3))  # no ends
    mixed = mix([first, second], [1, 3])

    def expected():
        each = torch.stack([lm.hmm().log_prob(tokens) for lm in (first, second)])
        return (each + torch.tensor([[0.25], [0.75]]).log()).logsumexp(0)

    torch.testing.assert_close(mixed.hmm().log_prob(tokens), expected())
    factors = Calibration(blocks=0.9, words=0.8)
    with_factors(mixed, factors).save_pretrained(tmp_path / "mixed")
    with_factors(first, FACTORS.times(factors))
    with_factors(second, factors)
    again = open_hmm(tmp_path / "mixed", "test")
    torch.testing.assert_close(again.hmm().log_prob(tokens), expected())


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibrated")
    text = folder / "text.txt"
    text.write_text("\n".join(f"w{i % 7} w{i % 5} w{i % 3}" for i in range(150)))
    given = {
        "corpus": {"data": str(text)},
        "model": {"states": 16, "blocks": 4},
        "options": {"width": 8},
        "training": {"epochs": 2, "batch": 4, "window": 8, "checks_per_epoch": 1},
    }
    recipe = from_dict(given, "test").changed(training={"calibrate": True})
    return folder, recipe, train_run(folder / "run", recipe)


def test_at_the_end_of_training(run):
    folder, _, result = run
    lm = open_hmm(folder / "run", "test")
    found = result["calibration"]
    assert dataclasses.asdict(lm.params.calibration) == found["calibration"]
    assert lm.params.calibration != UNCALIBRATED
    assert result["valid"]["perplexity"] == pytest.approx(found["after"])
    assert found["after"] < found["before"]
    corpus = prepare(folder / "text.txt")
    assert lm.perplexity(corpus).perplexity == pytest.approx(result["test"]["perplexity"])
    assert "factors that were fitted" in (folder / "run" / "model" / "README.md").read_text()


def test_a_finished_run_is_calibrated_later(run, tmp_path):
    _, recipe, result = run
    plain = recipe.changed(training={"calibrate": False})
    without = train_run(tmp_path / "run", plain)
    assert "calibration" not in without
    assert without["valid"]["perplexity"] == pytest.approx(result["calibration"]["before"])
    again = train_run(tmp_path / "run", recipe, resume=True)
    assert again["calibration"]["calibration"] == result["calibration"]["calibration"]
    assert read_object(tmp_path / "run" / "recipe.json")["recipe"]["training"]["calibrate"]


def test_more_epochs_after_that(run):
    folder, recipe, result = run
    longer = recipe.changed(training={"epochs": 3})
    again = train_run(folder / "run", longer, resume=True)
    assert again["calibration"]["before"] <= result["calibration"]["before"]


def test_a_model_that_begins_as_a_calibrated_one(run):
    folder, recipe, _ = run
    source = folder / "run"
    given = recipe.changed(
        initial={"init_from": str(source), "split_noise": 0.0},
        model={"states": 32},
        training={"calibrate": False, "lr": 1e-9, "epochs": 0.1},
    )
    result = train_run(folder / "grown", given)
    corpus = prepare(folder / "text.txt")
    before = open_model(source).perplexity(corpus).perplexity
    assert result["test"]["perplexity"] == pytest.approx(before, rel=1e-4)


def test_command(run, ask, bighmm, tmp_path):
    folder, _, _ = run
    made = ask("calibrate", folder / "run", "--out", tmp_path / "new", "--split", "test")
    assert made["after"] <= made["before"] and made["split"] == "test"
    data = ["--data", folder / "text.txt", "--split", "test"]
    found = ask("eval", tmp_path / "new", *data, "--check-normalised")
    assert found["perplexity"] == pytest.approx(made["after"], rel=1e-5)
    done = bighmm("calibrate", folder / "run", "--out", tmp_path / "new")
    assert done.status == 2 and "already holds files" in done.err


def test_what_has_no_factors(bighmm, tmp_path):
    tokenizer = Words.build([" ".join(WORDS)])
    lm = HMMLM("scalar", ScalarOptions(), Dense(3, tokenizer.size), tokenizer, seed=1)
    lm.save_pretrained(tmp_path / "tables")
    done = bighmm("calibrate", tmp_path / "tables", "--out", tmp_path / "new", "--data", "pydoc")
    assert done.status == 2 and "cannot be calibrated" in done.err
    done = bighmm("train", "--parameterisation", "scalar", "--calibrate", "--out", tmp_path / "run")
    assert done.status == 2 and "not for scalar parameters" in done.err
