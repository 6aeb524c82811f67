"""Settings that are chosen for the size of a text, and what is said at the end of a run."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from bighmm.data.tokenizers.words import Words
from bighmm.train.defaults import CPU, GPU, TextSize, choose
from bighmm.train.recipe import Recipe, from_dict
from bighmm.train.yardstick import opening_words, verdict

SIZES = [300, 5_000, 50_000, 500_000, 6_000_000, 500_000_000]


def size(tokens):
    return TextSize(tokens, max(8, tokens // 20), max(8, tokens // 20))


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("tokens", SIZES)
def test_every_size_gives_a_recipe(tokens, device):
    chosen = choose(Recipe(), {"data"}, size(tokens), device)
    model = chosen.recipe.model
    assert model.states % model.blocks == 0 and model.blocks <= size(tokens).used
    assert {"model.states", "model.blocks", "training.epochs"} <= set(chosen.reasons)
    assert all(reason and "\n" not in reason for reason in chosen.reasons.values())
    summary = chosen.summary(size(tokens))
    assert f"{tokens:,} training tokens" in summary and f"states {model.states:,}" in summary
    read = chosen.recipe.training.epochs * tokens
    assert read <= 1.5 * max(row.tokens_read for row in (*CPU, *GPU))


def test_more_text_never_gets_fewer_states():
    """Of those that a step computes, after dropout."""
    for device in ("cpu", "cuda"):
        recipes = [choose(Recipe(), (), size(n), device).recipe for n in SIZES]
        states = [r.model.states * (1 - r.training.state_dropout) for r in recipes]
        assert states == sorted(states)


def test_text_that_is_read_once_is_not_dropped():
    found = choose(Recipe(), (), size(6_000_000), "cpu")
    assert found.recipe.training.state_dropout == 0 and found.recipe.training.epochs <= 1
    assert "read once" in found.reasons["training.state_dropout"]


def test_the_rate_suits_the_batch():
    found = choose(Recipe(), (), size(500_000), "cpu")
    assert found.recipe.training.batch == 64 and found.recipe.training.lr > Recipe().training.lr
    smaller = Recipe().changed(training={"batch": 16})
    found = choose(smaller, {"batch"}, size(500_000), "cpu")
    assert found.recipe.training.lr == Recipe().training.lr and "training.lr" not in found.reasons


def test_what_is_given_stays():
    given = {"states": 96, "epochs": 3.5, "state_dropout": 0.1, "averaging": 0.5, "batch": 7}
    recipe = from_dict(
        {
            "model": {"states": 96, "blocks": 1},
            "training": {k: v for k, v in given.items() if k != "states"},
            "options": {"width": 24},
        },
        "r",
    )
    chosen = choose(recipe, {*given, "width"}, size(50_000), "cpu")
    found = chosen.recipe
    assert found.model.states == 96 and found.options.width == 24
    assert 96 % found.model.blocks == 0 and found.model.blocks > 1
    for name in given.keys() - {"states"}:
        assert getattr(found.training, name) == given[name]
    assert "model.blocks" in chosen.reasons and "model.states" not in chosen.reasons


@pytest.mark.parametrize(
    "model, given, states, blocks",
    [
        ({"states": 100, "blocks": 100}, {"blocks"}, 2000, 100),
        ({"states": 97, "blocks": 1}, {"states"}, 97, 97),
        ({"states": 4, "blocks": "words"}, {"blocks"}, 2500, "words"),
        ({"support": "dense"}, {"support"}, 256, 128),
    ],
)
def test_states_and_blocks_fit_each_other(model, given, states, blocks):
    recipe = from_dict({"model": model}, "r")
    found = choose(recipe, given, size(50_000), "cpu").recipe.model
    assert (found.states, found.blocks) == (states, blocks)


@pytest.mark.parametrize(
    "sections",
    [
        {"model": {"family": "lstm"}},
        {
            "model": {"parameterisation": "scalar"},
            "training": {"optimizer": "baum-welch", "state_dropout": 0.0},
        },
    ],
)
def test_other_models_stay_as_they_are(sections):
    recipe = from_dict(sections, "r")
    chosen = choose(recipe, (), size(50_000), "cpu")
    assert chosen.recipe == recipe and not chosen.reasons


def result(perplexity, counted=50.0, epochs=4.0):
    return {
        "run": "runs/a",
        "recipe": {"model": {"family": "hmm", "states": 64}, "training": {"epochs": epochs}},
        "test": {"perplexity": perplexity},
        "kneser_ney": {"test": counted},
    }


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("zebra : a b c d\na b : c\nb a c d a\n", "b a c d"),  # not within the first line
        ("zebra a b c d\na b : c\n", "a b : c"),
        ("zebra a b\nc zebra a\na b\n", "a b"),
        ("zebra zebra\n", "<unk>"),
    ],
)
def test_words_to_try_next(text, found):
    """They begin a line of the test text."""
    words = Words(["<unk>", "<eos>", "a", "b", "c", "d", ":"])
    ids = np.array(words.encode(text))
    assert opening_words(SimpleNamespace(tokenizer=words, split=lambda name: ids)) == found


def test_verdict():
    assert verdict(result(49.0), [(1.0, 49.0)], 10**6) == []
    still = verdict(result(60.0), [(2.0, 80.0), (4.0, 60.0)], 10**6)
    assert "50.00 on test, against 60.00" in still[0]
    assert "--resume --out runs/a --epochs 8" in still[1]
    assert "--init-from runs/a --states 128" in still[2]
    over = verdict(result(60.0), [(2.0, 60.0), (4.0, 80.0)], 10**6)
    assert "best at epoch 2 of 4" in over[1]
    short = verdict(result(60.0), [(2.0, 60.0), (4.0, 80.0)], 500)
    assert len(short) == 2 and "500 training tokens are few" in short[1]
    unknown = result(60.0) | {"kneser_ney": None}
    assert verdict(unknown, [], 10**6) == []


def test_a_run_on_a_small_text(tmp_path, bighmm):
    """What is chosen is said and stored; values that are given and recipes stay as they are."""
    text = tmp_path / "small.txt"
    text.write_text("\n".join(f"w{i % 7} w{i * i % 5} w{i % 3}" for i in range(120)) + "\n")
    run = tmp_path / "run"
    done = bighmm("train", "--data", text, "--epochs", 2, "--device", "cpu", "--out", run)
    assert done.status == 0, done.err
    assert "chosen for" in done.err and "states 8" in done.err and "epochs" not in done.err[:200]
    assert "Kneser-Ney" in done.out
    saved = json.loads((run / "recipe.json").read_text())
    assert saved["recipe"]["model"]["states"] == 8 and saved["recipe"]["training"]["epochs"] == 2
    assert "model.states" in saved["chosen"] and "training.epochs" not in saved["chosen"]
    card = (run / "model" / "README.md").read_text()
    assert "small.txt" in card and str(tmp_path) not in card and "| test |" in card
    assert "license" not in card and "pushed" not in card
    recipe = tmp_path / "r.toml"
    recipe.write_text("[model]\nstates = 12\nblocks = 3\n[options]\nwidth = 4\n")
    asked = ("--data", text, "--epochs", 1, "--device", "cpu", "--out", tmp_path / "by-recipe")
    done = bighmm("train", recipe, *asked)
    assert done.status == 0 and "chosen for" not in done.err
    saved = json.loads((tmp_path / "by-recipe" / "recipe.json").read_text())
    assert saved["recipe"]["model"]["states"] == 12 and "chosen" not in saved
    assert saved["recipe"]["training"]["averaging"] == 0.0
