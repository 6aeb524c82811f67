"""`bighmm distill-lm`: from a language model to an HMM, also with interruptions."""

import dataclasses
import json
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from bighmm.cli import distill_lm
from bighmm.data.corpus import open_corpus
from bighmm.data.labels import open_labels
from bighmm.distill import from_language_model
from bighmm.distill.from_language_model import DistillationWatch, distill_language_model
from bighmm.distill.sampling import read_samples
from bighmm.distill.settings import Labelling, SampleSettings, distillation_recipe
from bighmm.lm.hmmlm import HMMLM
from bighmm.model.params import find
from bighmm.train.loop import Stopped
from bighmm.train.recipe import ModelSettings, Recipe, TrainingSettings
from bighmm.train.run import Watch

transformers = pytest.importorskip("transformers")
SAMPLE = ("--tokens", 3000, "--length", 11, "--at-once", 40)
TRAIN = ("--states", 6, "--width", 8, "--epochs", 2, "--labelled-epochs", 0.5, "--batch", 16)
SMALL = (*SAMPLE, *TRAIN, "--device", "cpu")


def test_all_stages_from_a_language_model_to_an_hmm(ask, bighmm, tiny_lm, tmp_path):
    run = tmp_path / "run"
    flags = (*SMALL, "--chat", "--prompt", "the cat", "--prompt", "a dog")
    found = ask("distill-lm", tiny_lm, "--out", run, *flags)
    corpus, samples = open_corpus(run / "corpus"), read_samples(run / "samples")
    labels, lm = open_labels(run / "labels", corpus), HMMLM.from_pretrained(run / "model")
    assert np.array_equal(corpus.split("train"), samples.tokens[: len(corpus.split("train"))])
    assert len(labels.states) == len(corpus.split("train")) and labels.num_states == 6
    assert lm.tokenizer.fingerprint() == corpus.tokenizer.fingerprint()
    theirs = transformers.AutoTokenizer.from_pretrained(tiny_lm)
    assert lm.encode("the cat sat") == theirs("the cat sat")["input_ids"]
    total = lm.hmm().next_token([lm.encode("the cat"), lm.encode("the dog")]).exp().sum(1)
    torch.testing.assert_close(total, torch.ones(2))

    recipe = found["recipe"]
    assert recipe["corpus"]["data"] == str(run / "corpus") and recipe["training"]["window"] == 12
    assert recipe["initial"]["labels"] == str(run / "labels")
    assert recipe["initial"]["labelled_tokens"] == round(0.5 * len(corpus.split("train")))
    bound = found["language_model"]["test"]["perplexity"]
    assert 1 < bound < found["test"]["perplexity"] < found["test"]["unigram_perplexity"] * 1.2
    assert set(found["stage_seconds"]) == {"sampling", "labels", "training"}
    assert {"version": 1, **json.loads((run / "result.json").read_text())} == found

    known = ask("eval", run, "--check-normalised")
    assert known["perplexity"] == pytest.approx(found["test"]["perplexity"], rel=1e-5)
    shown = bighmm("distill-lm", tiny_lm, "--out", run, *flags)
    assert shown.status == 0, shown.err
    for words in ("language model", f"{bound:.2f}", "Three texts", "sampling 0 s"):
        assert words in shown.out
    assert ask("train", "--resume", "--out", run)["test"] == found["test"]


def stop(*_, **__):
    raise KeyboardInterrupt


def test_an_interrupted_run_continues(ask, bighmm, tiny_lm, tmp_path, monkeypatch):
    command = ("distill-lm", tiny_lm, "--out", tmp_path / "run", *SMALL)
    for stage in ("sample_texts", "corpus_of", "make_labels", "train_locked"):
        with monkeypatch.context() as change:
            change.setattr(from_language_model, stage, stop)
            done = bighmm(*command)
        assert done.status == 130
        assert "stopped; the same command goes on from here\n" in done.err
    found = ask(*command)
    other = ask(*command[:3], tmp_path / "other", *SMALL)
    for split in ("valid", "test"):
        assert found[split] == other[split]
        assert found["language_model"][split] == other["language_model"][split]


def test_a_run_that_is_stopped_in_training_continues(ask, bighmm, tiny_lm, tmp_path, monkeypatch):
    @contextmanager
    def at_once():
        yield lambda: True

    command = ("distill-lm", tiny_lm, "--out", tmp_path / "run", *SMALL)
    with monkeypatch.context() as change:
        change.setattr("bighmm.cli.train.stop_signals", at_once)
        done = bighmm(*command)
    assert done.status == 130 and done.out == ""
    assert "bighmm: stopped at step 1; go on with: the same command\n" in done.err
    assert ask(*command)["steps"] > 1


def test_a_recipe_and_a_file_of_prompts_without_labels(ask, tiny_lm, tmp_path):
    (tmp_path / "prompts.txt").write_text("the cat\n\na dog saw\n")
    recipe = tmp_path / "scalar.toml"
    recipe.write_text(
        '[model]\nstates = 5\nsupport = "dense"\nparameters = "scalar"\n'
        '[training]\nbatches = "documents"\nlr = 0.1\nepochs = 1\nstate_dropout = 0.0\n'
    )
    flags = ("--tokens", 2000, "--length", 8, "--at-once", 50, "--labelled-epochs", 0)
    files = ("--prompts", tmp_path / "prompts.txt", "--recipe", recipe)
    found = ask("distill-lm", tiny_lm, "--out", tmp_path / "run", *flags, *files)
    assert not (tmp_path / "run" / "labels").exists()
    assert found["recipe"]["model"]["parameterisation"] == "scalar"
    assert found["recipe"]["training"]["window"] == 9
    stages = json.loads((tmp_path / "run" / "stages.json").read_text())
    assert stages["sampling"]["prompts"] == ["the cat", "a dog saw"]
    assert stages["sampling"]["length"] == 9  # in files it counts the end mark


def test_default_options_depend_on_the_parameterisation():
    command = ["lm", "--out", "run", "--device", "cpu"]
    recipe, _ = distill_lm._parse(command)
    assert (recipe.model.parameterisation, recipe.options.layers) == ("one-relu", 1)
    recipe, _ = distill_lm._parse([*command, "--parameterisation", "neural"])
    assert recipe.options.layers == 2 and recipe.options.init_scale == 0.1


def test_settings_of_the_recipes_in_the_package():
    """They are the settings that the command had before there were recipe files."""
    for device, states, epochs, batch in (("cpu", 512, 4.0, 32), ("cuda", 4096, 10.0, 256)):
        recipe = distillation_recipe(device)
        assert recipe == Recipe(
            model=ModelSettings(states=states, support="dense", parameterisation="one-relu"),
            options=find("one-relu").options(init_scale=0.5),
            training=TrainingSettings(
                epochs=epochs,
                batches="documents",
                batch=batch,
                state_dropout=0.0,
                beta2=0.95,
                weight_decay=0.1,
                warmup=0.05,
                final_lr=0.1,
                checks_per_epoch=1.0,
                checkpoint_at_checks=False,
            ),
        )


def test_default_settings_depend_on_the_device():
    assert (SampleSettings.on_device("cpu").tokens, SampleSettings.on_device("cuda").tokens) == (
        *(50_000, 10_000_000),
    )
    found = SampleSettings.on_device("cuda", 70, length=5, seed=3)
    assert found == SampleSettings(tokens=70, at_once=1024, length=5, seed=3)
    assert SampleSettings().window == 64 == SampleSettings().stored()["length"]


def test_the_library_function_gives_the_run_of_the_command(ask, tiny_lm, tmp_path):
    """With other callbacks."""
    stages, sentences = [], []

    @contextmanager
    def stage():
        yield lambda name, done, total: stages.append((name, done, total))

    cpu = distillation_recipe("cpu")
    recipe = dataclasses.replace(
        cpu,
        model=dataclasses.replace(cpu.model, states=6),
        options=dataclasses.replace(cpu.options, width=8),
        training=dataclasses.replace(cpu.training, epochs=2.0, batch=16, device="cpu"),
    )
    samples = SampleSettings(tokens=3000, length=11, at_once=40)
    watch = DistillationWatch(stage, Watch(say=sentences.append))
    arguments = (str(tiny_lm), recipe, samples, Labelling(epochs=0.5))
    with pytest.raises(Stopped):
        distill_language_model(tmp_path / "one", *arguments, should_stop=lambda: True)
    found = distill_language_model(tmp_path / "one", *arguments, watch=watch)
    assert json.loads((tmp_path / "one" / "result.json").read_text()) == found
    assert not stages and sentences  # these stages were finished before the stop
    other = ask("distill-lm", tiny_lm, "--out", tmp_path / "two", *SMALL)
    for split in ("valid", "test"):
        assert found[split] == other[split]
        assert found["language_model"][split] == other["language_model"][split]
    distill_language_model(tmp_path / "three", *arguments, watch=watch)
    assert {name for name, _, _ in stages} >= {"sampling", "embedding", "clustering", "labelling"}


@pytest.mark.parametrize("length", [1, 4])
def test_length_does_not_count_the_end_mark(ask, tiny_lm, tmp_path, length):
    flags = ("--tokens", 600, "--length", length, "--at-once", 40, *TRAIN, "--device", "cpu")
    found = ask("distill-lm", tiny_lm, "--out", tmp_path / "run", *flags)
    samples = read_samples(tmp_path / "run" / "samples")
    texts = [text.tolist() for text in samples.texts(0, len(samples))]
    assert max(map(len, texts)) == length + 1
    assert any(len(text) == length + 1 and text[-1] == 0 for text in texts)  # ended in time
    assert found["recipe"]["training"]["window"] == length + 1


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--states", 4000], "3,000 tokens are too few for 4,000 states; sample more"),
        (["--labelled-epochs", 3], "labelled_epochs must be from 0 to the number of epochs, 2.0"),
        (["--chat"], "give --prompt too"),
        (["--prompts", "nowhere.txt"], "nowhere.txt cannot be read: No such file"),
        (["--family", "lstm"], "distill-lm trains an HMM, not a model of lstm"),
        (["--top-p", 0], "top_p must be above 0 and at most 1, not 0.0"),
        (["--length", 100], "reads 64 tokens at most"),
        (["--layer", 9], "has no layer 9"),
        (["--recipe", "empty.toml"], "there is no recipe empty.toml"),
    ],
)
def test_errors_of_wrong_flags(bighmm, tiny_lm, tmp_path, flags, message):
    done = bighmm("distill-lm", tiny_lm, "--out", tmp_path / "run", *SMALL, *flags)
    assert done.status == 2 and done.out == "" and done.err.count("\n") == 1
    assert message in done.err


def test_errors_of_wrong_files_and_names(bighmm, tiny_lm, tmp_path):
    done = bighmm("distill-lm", "nobody", "--out", tmp_path / "run", *SMALL)
    assert done.status == 2 and "there is no language model nobody" in done.err
    assert not (tmp_path / "run").exists()
    (tmp_path / "empty.txt").write_text("\n \n")
    files = ("--prompts", tmp_path / "empty.txt")
    done = bighmm("distill-lm", tiny_lm, "--out", tmp_path / "run", *SMALL, *files)
    assert done.status == 2 and "empty.txt holds no prompts; it needs one on a line" in done.err
    (tmp_path / "own.toml").write_text('[corpus]\ndata = "mine.txt"\n[model]\nblocks = 2\n')
    files = ("--recipe", tmp_path / "own.toml")
    done = bighmm("distill-lm", tiny_lm, "--out", tmp_path / "run", *SMALL, *files)
    assert done.status == 2 and "has a [corpus] or [initial], and distill-lm makes both" in done.err


def test_errors_of_other_settings_for_an_existing_run(bighmm, tiny_lm, tmp_path):
    command = ("distill-lm", tiny_lm, "--out", tmp_path / "run", *SMALL)

    def error_of(*flags):
        done = bighmm(*command, *flags)
        assert done.status == 2 and done.err.count("\n") == 1
        return done.err

    # A wrong setting can be corrected as long as no stage has used it.
    assert "give --prompt too" in error_of("--chat")
    assert "has no layer 9" in error_of("--layer", 9)
    assert bighmm(*command).status == 0
    for flags, words in (
        (("--temperature", 2), " had another temperature (1.0, 2.0)"),
        (("--tokens", 4000), " had another tokens (3000, 4000)"),
        (("--states", 7), " had another states (6, 7)"),
        (("--lr", 0.5), "was started with another configuration: training.lr (0.01, 0.5)"),
    ):
        assert words in error_of(*flags)
    assert "already holds other files; choose another --out" in bighmm(*command[:3], tmp_path).err
