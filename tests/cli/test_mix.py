"""`bighmm mix`: the mixture of trained models, and every command on it."""

import numpy as np
import pytest

from bighmm.data.corpus import prepare
from bighmm.lm.mixing import best_weights, fitted_weights, mix, weights_of
from bighmm.lm.opening import open_hmm
from bighmm.train.recipe import from_dict
from bighmm.train.run import train_run


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two models of different sizes and seeds, one with other blocks, and one that carries on."""
    folder = tmp_path_factory.mktemp("mix")
    text = folder / "text.txt"
    text.write_text("\n".join(f"w{i % 7} w{i % 5} w{i % 3}" for i in range(150)))

    def train(name, seed, states=16, blocks=4, **training):
        settings = {"epochs": 1, "batch": 4, "window": 8, "seed": seed} | training
        given = {
            "corpus": {"data": str(text)},
            "model": {"states": states, "blocks": blocks},
            "options": {"width": 8},
            "training": settings | {"checks_per_epoch": 1},
        }
        train_run(folder / name, from_dict(given, name))

    train("a", 1)
    train("b", 2, states=8)
    train("other-blocks", 1, blocks=2)
    train("carry", 1, convention="carry")
    return folder


def test_em_finds_the_best_weights():
    probs = np.array([[0.9, 0.1], [0.2, 0.8], [0.9, 0.3], [0.0, 0.0]])
    with np.errstate(divide="ignore"):
        found = best_weights(np.log(probs))
    grid = np.linspace(0.001, 0.999, 999)
    values = np.log(np.outer(grid, probs[:3, 0]) + np.outer(1 - grid, probs[:3, 1])).sum(1)
    assert found.sum() == pytest.approx(1.0)
    assert found[0] == pytest.approx(grid[values.argmax()], abs=2e-3)


def test_a_useless_model_keeps_some_weight():
    assert best_weights(np.array([[0.0, -900.0], [-1.0, -np.inf]]))[1] > 0


def test_every_command_on_a_mixture(runs, ask, bighmm, tmp_path):
    out = tmp_path / "mixed"
    made = ask("mix", runs / "a", runs / "b", "--out", out)
    assert made["states"] == 24 and sum(made["weights"]) == pytest.approx(1.0)
    data = ["--data", runs / "text.txt"]
    valid = {
        name: ask("eval", path, "--split", "valid", *data, "--check-normalised")
        for name, path in {"a": runs / "a", "b": runs / "b", "mixed": out}.items()
    }
    best = min(valid["a"]["perplexity"], valid["b"]["perplexity"])
    assert valid["mixed"]["perplexity"] <= best + 1e-3  # no weights are better on this text
    assert valid["mixed"]["convention"] == "reset"
    assert valid["mixed"]["largest_deviation_from_one"] < 1e-5
    lines = ask("score", out, stdin=b"w1 w2 w0\n")["lines"]
    each = [ask("score", runs / n, stdin=b"w1 w2 w0\n")["lines"][0]["log_prob"] for n in "ab"]
    weights = np.log(made["weights"])
    assert lines[0]["log_prob"] == pytest.approx(np.logaddexp(*(weights + each)), abs=1e-5)
    assert ask("next", out, "w1 w2", "--n", "3")["next"]
    assert len(ask("sample", out, "--n", "4", "--seed", "1")["texts"]) == 4
    assert ask("fill", out, "w1 ___ w0", "--best")["fillings"]
    assert ask("fill", out, "w1 ___1-2 w0", "--n", "2", "--seed", "1")["fillings"]
    assert ask("next", out, "w1", "--must", "w0")["next"]
    assert bighmm("tag", out, "w1 w2").status == 0
    card = (out / "README.md").read_text()
    assert f"| `a` | {made['weights'][0]:.4f} |" in card and "| `b` | " in card


def test_weights_that_are_given(runs, ask, tmp_path):
    found = ask("mix", runs / "a", runs / "b", "--out", tmp_path / "one", "--weights", "1", "3")
    assert found["weights"] == pytest.approx([0.25, 0.75])
    found = ask("mix", runs / "a", runs / "b", "--out", tmp_path / "two", "--equal")
    assert found["weights"] == pytest.approx([0.5, 0.5])


def test_what_cannot_be_mixed(runs, bighmm, tmp_path):
    def fails(message, *arguments):
        done = bighmm("mix", *arguments, "--out", tmp_path / "none")
        assert done.status == 2 and message in done.err, done.err
        assert not (tmp_path / "none").exists()

    fails("words in different blocks", runs / "a", runs / "other-blocks")
    fails("reset or carry", runs / "a", runs / "carry")
    fails("at least two models", runs / "a")
    fails("need as many finite weights", runs / "a", runs / "b", "--weights", "1")
    fails("exclude each other", runs / "a", runs / "b", "--weights", "1", "2", "--equal")
    done = bighmm("mix", runs / "a", runs / "b", "--out", runs)
    assert done.status == 2 and "already holds files" in done.err


def test_from_python(runs):
    lms = [open_hmm(runs / name, "mixture") for name in "ab"]
    weights = fitted_weights(lms, prepare(runs / "text.txt"))
    mixed = mix(lms, weights)
    assert weights_of(mixed) == pytest.approx(weights)
    with pytest.raises(ValueError, match="not a mixture"):
        weights_of(lms[0])
    assert mixed.num_parameters == sum(lm.num_parameters for lm in lms) + 2
