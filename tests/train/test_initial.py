"""What a model begins with: labels, centroids, a head, a transformer; frozen embeddings."""

import contextlib
import dataclasses
import json

import numpy as np
import pytest
import torch

from bighmm.cli.main import main
from bighmm.data.corpus import prepare
from bighmm.distill.labelling import LabelSettings, make_labels
from bighmm.distill.teachers import open_teacher
from bighmm.interop.arrays import to_numpy
from bighmm.lm.baselines.transformer import TransformerLM, TransformerOptions
from bighmm.model.params.neural import NeuralOptions
from bighmm.train.loop import Stopped, Training
from bighmm.train.recipe import (
    CorpusSettings,
    InitialSettings,
    ModelSettings,
    Recipe,
    TrainingSettings,
)
from bighmm.train.setup import make_support, new_model
from watching import Watcher, losses

STATES = 6
TOKENS_PER_STEP = 4 * 8


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(9, (900,), generator=generator).tolist()
    lines = [" ".join(f"w{w}" for w in drawn[i : i + 9]) for i in range(0, len(drawn), 9)]
    path = tmp_path_factory.mktemp("initial") / "text.txt"
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def corpus(text):
    return prepare(text)


def labels_for(corpus, folder, model):
    support = make_support(model, corpus, 1)
    teacher = open_teacher("random", corpus.tokenizer)
    return make_labels(corpus, teacher, support, LabelSettings(), out=folder)


MODELS = {
    "dense": ModelSettings(states=STATES, support="dense", parameterisation="ablation-b"),
    "scalar": ModelSettings(states=STATES, support="dense", parameterisation="scalar"),
    "blocked": ModelSettings(states=STATES, blocks=2),
}


def recipe(text, model, initial, **changes):
    settings = {"epochs": 1, "batch": 4, "window": 8, "batches": "windows", "device": "cpu"}
    options = None
    if model.parameterisation != "scalar":
        options = dataclasses.replace(
            Recipe(model=model).options, **{"width": 4, "heads": 2, **changes}
        )
    return Recipe(
        CorpusSettings(data=str(text)), model, options, TrainingSettings(**settings), initial
    )


def train(wanted, corpus, run, stop_at=None, resume=False):
    training = Training(wanted, corpus, new_model(wanted, corpus), run, Watcher())
    if resume:
        training.resume()
    with contextlib.suppress(Stopped):
        training.run(lambda: stop_at is not None and training.step >= stop_at)
    return training, losses(run)


@pytest.mark.parametrize("kind", MODELS)
def test_the_first_tokens_are_trained_on_with_their_states(kind, text, corpus, tmp_path):
    model = MODELS[kind]
    labels = labels_for(corpus, tmp_path / "labels", model)
    count = 5
    initial = InitialSettings(
        labels=str(labels.folder), labelled_tokens=count * TOKENS_PER_STEP - 1
    )
    wanted = recipe(text, model, initial)
    training, losses = train(wanted, corpus, tmp_path / "run")
    assert training.runner.phases[0].until == count and len(losses) == training.total_steps

    fresh = new_model(wanted, corpus)
    batch = training.runner.phases[0].runner.batches.batch(0)
    hmm, ids, states = fresh.hmm(), torch.from_numpy(batch.ids), torch.from_numpy(batch.states)
    lengths = torch.from_numpy(batch.lengths)
    with_states = -hmm.joint_log_prob(ids, states, lengths).sum() / lengths.sum()
    assert losses[0] == pytest.approx(float(with_states), rel=1e-5)
    assert losses[count] < losses[count - 1]  # words alone are less to tell


@pytest.mark.parametrize("batches", ["streams", "ordered", "windows"])
def test_tokens_keep_their_labels_however_they_are_shuffled(batches, text, corpus, tmp_path):
    model = MODELS["dense"]
    labels = labels_for(corpus, tmp_path / "labels", model)
    initial = InitialSettings(labels=str(labels.folder))
    wanted = recipe(text, model, initial)
    wanted = dataclasses.replace(
        wanted, training=dataclasses.replace(wanted.training, batches=batches)
    )
    training = Training(wanted, corpus, new_model(wanted, corpus), tmp_path / "run", Watcher())
    read = training.runner.phases[0].runner.batches
    tokens = corpus.split("train").tolist()
    pairs = sorted(zip(tokens, labels.states.tolist(), strict=True))
    found = []
    for step in range(read.steps_per_epoch):
        batch = read.batch(step)
        for ids, states, length in zip(batch.ids, batch.states, batch.lengths, strict=True):
            found += zip(ids[:length].tolist(), states[:length].tolist(), strict=True)
    assert sorted(found) == pairs


def baum_welch_recipe(text, labels, support="dense", **training):
    """Labels for the first five steps, then none."""
    model = ModelSettings(states=STATES, blocks=2, support=support, parameterisation="scalar")
    initial = InitialSettings(labels=str(labels), labelled_tokens=5 * TOKENS_PER_STEP)
    wanted = recipe(text, model, initial)
    changes = {"optimizer": "baum-welch", "state_dropout": 0.0, "schedule": "constant", **training}
    return dataclasses.replace(wanted, training=dataclasses.replace(wanted.training, **changes))


@pytest.mark.parametrize("support", ["dense", "blocked"])
def test_baum_welch_from_labels_takes_their_shares(support, text, corpus, tmp_path):
    """One step over the whole text: how often a state, a word of it and its next state are."""
    model = ModelSettings(states=STATES, blocks=2, support=support, parameterisation="scalar")
    labels = labels_for(corpus, tmp_path / "labels", model)
    wanted = baum_welch_recipe(text, labels.folder, support, full_batch=True, batches="ordered")
    training, _ = train(wanted, corpus, tmp_path / "run", stop_at=1)
    tokens, states = corpus.split("train").tolist(), labels.states.tolist()
    rows = training.runner.phases[0].runner.batches.shape[0]
    cuts = set(np.linspace(0, len(tokens), rows + 1).round().astype(int).tolist())
    starts, moves = torch.zeros(STATES), torch.zeros(STATES, STATES)
    emissions = torch.zeros(corpus.tokenizer.size, STATES)
    for i, (token, state) in enumerate(zip(tokens, states, strict=True)):
        emissions[token, state] += 1
        if i in cuts or tokens[i - 1] == corpus.tokenizer.end:
            starts[state] += 1
        else:
            moves[states[i - 1], state] += 1
    found = {name: torch.from_numpy(a).float() for name, a in to_numpy(training.lm.hmm()).items()}
    torch.testing.assert_close(found["start"], starts / starts.sum())
    for name, counts in (("transition", moves), ("emission", emissions.T)):
        used = counts.sum(1) > 0  # other states keep what they have
        shares = counts[used] / counts[used].sum(1, keepdim=True)
        torch.testing.assert_close(found[name][used], shares)
        assert used.any()


@pytest.mark.parametrize("batches", ["windows", "streams"])
@pytest.mark.parametrize("stop_at", [3, 5, 7])
def test_baum_welch_with_labels_and_then_without_resumes(batches, stop_at, text, corpus, tmp_path):
    labels = labels_for(corpus, tmp_path / "labels", MODELS["scalar"])
    wanted = baum_welch_recipe(text, labels.folder, batches=batches, step_size=0.3)
    whole, losses = train(wanted, corpus, tmp_path / "whole")
    assert [phase.until for phase in whole.runner.phases] == [5, float("inf")]
    assert losses[5] < losses[4] < losses[0]
    train(wanted, corpus, tmp_path / "parts", stop_at=stop_at)
    parts, again = train(wanted, corpus, tmp_path / "parts", resume=True)
    assert losses == again
    for one, other in zip(whole.lm.params.parameters(), parts.lm.params.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["pretrained", "head"])
def test_baum_welch_does_not_begin_with_networks(name):
    with pytest.raises(ValueError, match="somewhere goes with the optimiser adamw"):
        Recipe(
            model=ModelSettings(parameterisation="scalar"),
            training=TrainingSettings(optimizer="baum-welch", state_dropout=0.0),
            initial=InitialSettings(**{name: "somewhere"}),
        )


@pytest.mark.parametrize("stop_at", [2, 5, 7])
def test_a_run_in_phases_resumes(stop_at, text, corpus, tmp_path):
    labels = labels_for(corpus, tmp_path / "labels", MODELS["dense"])
    initial = InitialSettings(
        labels=str(labels.folder),
        labelled_tokens=5 * TOKENS_PER_STEP,
        frozen_tokens=3 * TOKENS_PER_STEP,
    )
    wanted = recipe(text, MODELS["dense"], initial)
    whole, losses = train(wanted, corpus, tmp_path / "whole")
    assert [phase.until for phase in whole.runner.phases] == [3, 5, float("inf")]
    train(wanted, corpus, tmp_path / "parts", stop_at=stop_at)
    parts, again = train(wanted, corpus, tmp_path / "parts", resume=True)
    assert losses == again
    for one, other in zip(whole.lm.params.parameters(), parts.lm.params.parameters(), strict=True):
        assert torch.equal(one, other)


def test_frozen_embeddings_stay_and_then_move(text, corpus, tmp_path):
    initial = InitialSettings(frozen_tokens=3 * TOKENS_PER_STEP)
    wanted = recipe(text, ModelSettings(states=STATES, support="dense"), initial)
    before = new_model(wanted, corpus).params
    training, _ = train(wanted, corpus, tmp_path / "run", stop_at=3)
    assert torch.equal(training.lm.params.words, before.words)
    assert torch.equal(training.lm.params.state.table, before.state.table)
    moved = training.lm.params.networks["leaving"].layers[0].weight
    assert not torch.equal(moved, before.networks["leaving"].layers[0].weight)
    training, _ = train(wanted, corpus, tmp_path / "run", resume=True)
    assert not torch.equal(training.lm.params.words, before.words)


def test_states_begin_with_centroids(text, corpus, tmp_path):
    model = MODELS["dense"]
    labels = labels_for(corpus, tmp_path / "labels", model)
    centroids = labels.centroids()["centroids"]
    initial = InitialSettings(labels=str(labels.folder), centroids=True)
    wanted = recipe(text, model, initial, width=centroids.shape[1])
    for table in new_model(wanted, corpus).params.state.tables.values():
        both = torch.stack([table.detach().flatten(), centroids.flatten()])
        assert torch.corrcoef(both)[0, 1] > 0.999
        assert 0.05 < float(table.detach().std()) < 0.2  # as spread as the embeddings it replaced
    with pytest.raises(ValueError, match=r"centroids of .* has 6 states of width .* of width 3"):
        new_model(recipe(text, model, initial, width=3), corpus)
    with pytest.raises(ValueError, match="need states with embeddings of their own"):
        new_model(recipe(text, MODELS["scalar"], initial), corpus)


@pytest.fixture(scope="module")
def teacher(corpus, tmp_path_factory):
    folder = tmp_path_factory.mktemp("teacher") / "model"
    options = TransformerOptions(width=8, layers=2, heads=2, context=8)
    lm = TransformerLM(options, corpus.tokenizer, seed=3)
    lm.save_pretrained(folder)
    return folder, lm


@pytest.mark.parametrize("parameters", ["transformer", "monolithic-transformer"])
def test_a_transformer_over_states_begins_with_a_language_model(
    parameters, text, corpus, teacher, tmp_path
):
    folder, lm = teacher
    model = ModelSettings(states=STATES, support="dense", parameterisation=parameters)
    initial = InitialSettings(pretrained=str(folder), head=str(folder))
    wanted = recipe(text, model, initial, width=64)
    made = new_model(wanted, corpus)
    assert made.params.options.width == 8
    weights = lm.params.backbone.state_dict()
    for network in made.params.networks.values():
        for name, tensor in network.backbone.state_dict().items():
            assert torch.equal(tensor, weights[name])
    both = torch.stack([made.params.words.detach().flatten(), lm.params.words.detach().flatten()])
    assert torch.corrcoef(both)[0, 1] > 0.999
    made.save_pretrained(tmp_path / "saved")
    again = type(made).from_pretrained(tmp_path / "saved")
    ids = torch.tensor([[1, 2, 3]])
    torch.testing.assert_close(again.hmm().log_prob(ids), made.hmm().log_prob(ids))


def test_what_does_not_fit(text, corpus, teacher, tmp_path):
    folder, _ = teacher
    labels = labels_for(corpus, tmp_path / "labels", MODELS["dense"])
    other = ModelSettings(states=4, support="dense", parameterisation="ablation-b")
    for model, initial, sentence in (
        (MODELS["dense"], InitialSettings(pretrained=str(folder)), "use --parameterisation"),
        (MODELS["dense"], InitialSettings(head=str(folder)), "words of width 8"),
        (MODELS["scalar"], InitialSettings(head=str(folder)), "whose words have embeddings"),
        (MODELS["dense"], InitialSettings(head=str(tmp_path / "none")), "no pretrained model"),
        (MODELS["dense"], InitialSettings(labels=str(tmp_path / "none")), "holds no labels"),
        (other, InitialSettings(labels=str(labels.folder)), "labels in .* are for a model"),
    ):
        with pytest.raises(ValueError, match=sentence):
            wanted = recipe(text, model, initial)
            Training(wanted, corpus, new_model(wanted, corpus), tmp_path / "run", Watcher())


@pytest.mark.parametrize(
    "initial, sentence",
    [
        ({"centroids": True}, "give --labels too"),
        ({"labelled_tokens": -1}, "labelled_tokens must be finite and not below 0, not -1"),
    ],
)
def test_wrong_settings(initial, sentence, text):
    with pytest.raises(ValueError, match=sentence):
        recipe(text, MODELS["dense"], InitialSettings(**initial))


def test_tables_have_no_embeddings_to_freeze(text, corpus, tmp_path):
    wanted = recipe(text, MODELS["scalar"], InitialSettings(frozen_tokens=40))
    with pytest.raises(ValueError, match="a model of scalar parameters has none"):
        Training(wanted, corpus, new_model(wanted, corpus), tmp_path / "run", Watcher())


def test_only_hmms_have_labels(text):
    with pytest.raises(
        ValueError, match=r"only an HMM can begin with somewhere, and the model is .* lstm"
    ):
        Recipe(model=ModelSettings(family="lstm"), initial=InitialSettings(labels="somewhere"))


def test_from_the_command_line(text, corpus, tmp_path, capsys):
    folder, run = str(tmp_path / "labels"), str(tmp_path / "run")
    size = ["--states", "6", "--support", "dense"]
    main(["distill", "random", "--data", str(text), *size, "--out", folder, "--json"])
    capsys.readouterr()
    flags = ["--labels", folder, "--labelled-tokens", "64", "--parameters", "ablation-b"]
    more = ["--width", "4", "--epochs", "1", "--batches", "windows", "--state-dropout", "0"]
    main(["train", "--data", str(text), *size, *flags, *more, "--out", run, "--json"])
    result = json.loads(capsys.readouterr().out)
    assert result["recipe"]["initial"]["labels"] == folder
    assert result["valid"]["perplexity"] < 100


def test_options_are_neural():
    assert isinstance(Recipe(model=MODELS["dense"]).options, NeuralOptions)


def test_labelled_texts_of_several_lengths_are_read_once(tmp_path):
    """`labelled_tokens` counts tokens, not the places of padded batches."""
    lines = [" ".join(["w"] * (1 + 7 * (i % 5 == 0))) for i in range(200)]
    path = tmp_path / "text.txt"
    path.write_text("\n".join(lines))
    corpus = prepare(path)
    labels = labels_for(corpus, tmp_path / "labels", MODELS["scalar"])
    size = len(corpus.split("train"))
    initial = InitialSettings(labels=str(labels.folder), labelled_tokens=size)
    wanted = recipe(path, MODELS["scalar"], initial)
    changed = dataclasses.replace(wanted.training, batches="documents", window=16, batch=5)
    wanted = dataclasses.replace(wanted, training=changed)
    lm = new_model(wanted, corpus)
    training = Training(wanted, corpus, lm, tmp_path / "run", Watcher())
    assert training.runner.phases[0].until == training.batches.steps_per_epoch
