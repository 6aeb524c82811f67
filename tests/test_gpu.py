"""Training on a GPU: `make test-gpu`. Skipped where there is none."""

import contextlib
import itertools
import json

import pytest
import torch

from bighmm import constraints as c
from bighmm.base import randomness
from bighmm.cli.main import main
from bighmm.data.corpus import prepare
from bighmm.distill.streams import FromProbabilities, Streams
from bighmm.lm.evaluation import deviation_from_one, evaluate
from bighmm.lm.hmmlm import HMMLM
from bighmm.lm.mixing import fitted_weights, mix
from bighmm.model.params.neural import NeuralOptions
from bighmm.train.captured import CapturedRunner
from bighmm.train.checkpoint import load_checkpoint
from bighmm.train.loop import Stopped, Training
from bighmm.train.losses import tensor_float_32
from bighmm.train.recipe import CorpusSettings, ModelSettings, Recipe, TrainingSettings, options_of
from bighmm.train.setup import new_model
from models import KINDS, random_hmm
from watching import Watcher, losses

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

STEPS = 50


@pytest.fixture
def text(tmp_path):
    words = [f"w{i}" for i in range(60)]
    generator = torch.Generator().manual_seed(0)
    weights = 1.0 / torch.arange(1, 61)
    drawn = torch.multinomial(weights, 16_000, True, generator=generator).tolist()
    lines = [" ".join(words[w] for w in drawn[i : i + 16]) for i in range(0, len(drawn), 16)]
    path = tmp_path / "text.txt"
    path.write_text("\n".join(lines))
    return path


def recipe(text, support="blocked", **training):
    return Recipe(
        corpus=CorpusSettings(data=str(text)),
        model=ModelSettings(states=64, blocks=8, support=support),
        options=NeuralOptions(width=32),
        training=TrainingSettings(
            epochs=1, batch=4, window=16, lr=0.003, matmul_dtype="bfloat16", **training
        ),
    )


def train(wanted, run, device, stop_at=None, resume=False):
    corpus = prepare(wanted.corpus.data)
    lm = new_model(wanted, corpus).to(device, "bfloat16")
    training = Training(wanted, corpus, lm, run, Watcher())
    if resume:
        training.resume()
    training.total_steps = min(training.total_steps, STEPS)
    training.check_steps = {step for step in training.check_steps if step < STEPS} | {STEPS}
    if device == "cuda":
        training.runner.at_once = min(training.runner.at_once, 10)
    with contextlib.suppress(Stopped):
        training.run(lambda: stop_at is not None and training.step >= stop_at)
    return lm, corpus, losses(run)


@pytest.mark.parametrize("capture", [True, False])
@pytest.mark.parametrize("support, dropout", [("blocked", 0.5), ("blocked", 0.0), ("dense", 0.0)])
def test_same_training_on_cpu_and_gpu(text, tmp_path, support, dropout, capture):
    """Same start, same masks: losses within 1 % for 50 steps, though products are rounded."""
    wanted = recipe(text, support, state_dropout=dropout, capture=capture)
    _, _, on_cpu = train(wanted, tmp_path / "cpu", "cpu")
    _, _, on_gpu = train(wanted, tmp_path / "gpu", "cuda")
    assert len(on_cpu) == len(on_gpu) == STEPS
    for a, b in zip(on_cpu, on_gpu, strict=True):
        assert a == pytest.approx(b, rel=1e-2)


@pytest.mark.parametrize("transitions", ["flat", "two-level"])
@pytest.mark.parametrize("embeddings", ["independent", "split", "factored"])
def test_touched_rows_captured(text, tmp_path, embeddings, transitions):
    """A captured step changes the rows that an eager one changes, and those alone."""
    runs = {}
    for capture in (True, False):
        plain = recipe(text, state_dropout=0.5, rows="touched", capture=capture)
        wanted = plain.changed(options={"embeddings": embeddings, "transitions": transitions})
        _, _, found = train(wanted, tmp_path / str(capture), "cuda")
        steps = load_checkpoint(tmp_path / str(capture))[0].tensors
        rows = {name: steps[name] for name in steps if name.endswith("row_steps")}
        runs[capture] = (found, rows)
    (captured, rows), (eager, expected) = runs[True], runs[False]
    assert len(captured) == STEPS
    assert captured == pytest.approx(eager, rel=1e-2)
    assert rows.keys() == expected.keys()
    assert all(torch.equal(counts, expected[name]) for name, counts in rows.items())
    of_states = [counts for counts in rows.values() if len(counts) == 64]
    assert len(of_states) == (4 if embeddings == "split" else 1)
    assert all(counts.min() < counts.max() < STEPS for counts in of_states)


def test_touched_rows_as_on_a_cpu(text, tmp_path):
    wanted = recipe(text, state_dropout=0.5, rows="touched")
    _, _, on_cpu = train(wanted, tmp_path / "cpu", "cpu")
    _, _, on_gpu = train(wanted, tmp_path / "gpu", "cuda")
    assert len(on_gpu) == STEPS and on_gpu == pytest.approx(on_cpu, rel=1e-2)
    train(wanted, tmp_path / "parts", "cuda", stop_at=20)
    _, _, parts = train(wanted, tmp_path / "parts", "cuda", resume=True)
    assert parts == pytest.approx(on_gpu, rel=1e-2)


REGULARISED = {
    "own masks": {"embedding_dropout": 0.2, "vector_dropout": 0.1, "word_dropout": 0.2},
    "shared masks": {"vector_dropout": 0.1, "word_dropout": 0.2, "dropout_masks": "shared"},
    "hidden words": {"hidden_words": 0.3},
    "decays": {"weight_decay_states": 0.1, "weight_decay_words": 0.3},
    "carry": {"convention": "carry", "batches": "rotated"},
}


@pytest.mark.parametrize("capture", [True, False])
@pytest.mark.parametrize("more", REGULARISED.values(), ids=REGULARISED)
def test_regularised_as_on_a_cpu(text, tmp_path, more, capture):
    wanted = recipe(text, state_dropout=0.5, rows="touched", capture=capture, **more)
    _, _, on_cpu = train(wanted, tmp_path / "cpu", "cpu")
    lm, corpus, on_gpu = train(wanted, tmp_path / "gpu", "cuda")
    assert len(on_gpu) == STEPS and on_gpu == pytest.approx(on_cpu, rel=1e-2)
    assert deviation_from_one(lm.hmm(), corpus.split("valid")) < 1e-4


def test_a_mixture_on_a_gpu(text, tmp_path):
    lms = []
    for seed in (1, 2):
        lm, corpus, _ = train(recipe(text, seed=seed), tmp_path / str(seed), "cuda")
        lms.append(lm)
    mixed = mix(lms, fitted_weights(lms, corpus))
    assert mixed.device.type == "cuda"
    assert deviation_from_one(mixed.hmm(), corpus.split("valid")) < 1e-4
    for convention in ("reset", "carry"):
        here = mixed.to("cuda", "bfloat16").perplexity(corpus, convention=convention).perplexity
        there = mixed.to("cpu", "bfloat16").perplexity(corpus, convention=convention).perplexity
        assert here == pytest.approx(there, rel=1e-3)


OTHER_KINDS = {
    "scalar, blocked": (ModelSettings(states=64, blocks=8, parameterisation="scalar"), {}),
    "scalar, dense": (ModelSettings(states=20, support="dense", parameterisation="scalar"), {}),
    # Where a width is given, the usual one of 256 makes steps so large that a change of one
    # millionth in the first weights is one of some percent in the losses.
    "per-token": (ModelSettings(states=64, support="per-token", states_per_token=8), {"width": 32}),
    "feed-forward": (ModelSettings(family="feed-forward"), {}),
    "lstm": (ModelSettings(family="lstm"), {}),
    "awd-lstm": (ModelSettings(family="awd-lstm"), {"width": 64, "embedding": 32}),
    "recurrent-hmm": (ModelSettings(family="recurrent-hmm"), {"width": 32, "embedding": 16}),
    "transformer": (ModelSettings(family="transformer"), {"width": 32, "layers": 2}),
    "ablation-b": (ModelSettings(states=64, support="dense", parameterisation="ablation-b"), {}),
    "transformer over states": (
        ModelSettings(states=64, support="dense", parameterisation="monolithic-transformer"),
        {"width": 32},
    ),
}


def other_recipe(text, kind, **training):
    model, options = OTHER_KINDS[kind]
    settings = TrainingSettings(
        epochs=1, batch=4, window=16, lr=0.003, matmul_dtype="bfloat16", **training
    )
    return Recipe(CorpusSettings(data=str(text)), model, options_of(model)(**options), settings)


@pytest.mark.parametrize(
    "kind, dropout",
    [*((kind, 0.5) for kind in OTHER_KINDS), ("scalar, blocked", 0.0), ("per-token", 0.0)],
)
def test_other_models_train_as_on_a_cpu(text, tmp_path, kind, dropout):
    wanted = other_recipe(text, kind, state_dropout=dropout)
    _, _, on_cpu = train(wanted, tmp_path / "cpu", "cpu")
    lm, corpus, on_gpu = train(wanted, tmp_path / "gpu", "cuda")
    assert len(on_cpu) == len(on_gpu) == STEPS
    for a, b in zip(on_cpu, on_gpu, strict=True):
        assert a == pytest.approx(b, rel=1e-2)
    assert deviation_from_one(lm.predictor(), corpus.split("test"), 16) < 1e-3


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_what_is_captured(text, tmp_path, kind):
    wanted = other_recipe(text, kind)
    corpus = prepare(wanted.corpus.data)
    lm = new_model(wanted, corpus).to("cuda", "bfloat16")
    steps = Training(wanted, corpus, lm, tmp_path / "run", Watcher()).runner
    assert isinstance(steps, CapturedRunner) == (kind != "per-token")


@pytest.mark.parametrize("kind", ["awd-lstm", "hmm"])
def test_averages_captured(text, tmp_path, kind):
    """A captured step counts the parameters as an eager one does, and validation changes none."""
    runs = {}
    for capture in (True, False):
        given = {"averaging": 0.9, "capture": capture}
        if kind == "hmm":
            wanted = recipe(text, state_dropout=0.5, rows="touched", **given)
        else:
            wanted = other_recipe(text, kind, **given)
        _, _, found = train(wanted, tmp_path / str(capture), "cuda")
        runs[capture] = (found, load_checkpoint(tmp_path / str(capture))[0].tensors)
    (captured, tensors), (eager, expected) = runs[True], runs[False]
    assert captured == pytest.approx(eager, rel=1e-2)
    assert int(tensors["average.steps"]) == int(expected["average.steps"]) == STEPS
    for name in (name for name in expected if name.startswith("average.sum.")):
        torch.testing.assert_close(tensors[name], expected[name], rtol=0.05, atol=5e-3)


@pytest.mark.parametrize("support, width", [("dense", 384), ("dense", 512), ("blocked", 512)])
def test_wide_vectors(text, tmp_path, support, width):
    """What is read together fits into the memory that a program has."""
    model = ModelSettings(states=256, blocks=2, support=support)
    training = TrainingSettings(epochs=1, batch=4, window=16, lr=1e-4, matmul_dtype="bfloat16")
    wanted = Recipe(CorpusSettings(data=str(text)), model, NeuralOptions(width=width), training)
    _, _, on_cpu = train(wanted, tmp_path / "cpu", "cpu", stop_at=3)
    _, _, on_gpu = train(wanted, tmp_path / "gpu", "cuda", stop_at=10)
    assert on_gpu[:3] == pytest.approx(on_cpu, rel=1e-2)


@pytest.mark.parametrize("capture", [True, False])
def test_baum_welch_as_on_a_cpu(text, tmp_path, capture):
    options = {"optimizer": "baum-welch", "step_size": 0.5, "smoothing": 0.01, "state_dropout": 0.0}
    wanted = other_recipe(text, "scalar, dense", capture=capture, **options)
    _, _, on_cpu = train(wanted, tmp_path / "cpu", "cpu")
    lm, corpus, on_gpu = train(wanted, tmp_path / "gpu", "cuda")
    assert len(on_cpu) == len(on_gpu) == STEPS
    assert on_gpu == pytest.approx(on_cpu, rel=1e-2)
    assert deviation_from_one(lm.predictor(), corpus.split("test"), 16) < 1e-3
    again = Training(wanted, corpus, lm, tmp_path / "again", Watcher())
    assert isinstance(again.runner, CapturedRunner) == capture


@pytest.mark.parametrize("support, dropout", [("blocked", 0.5), ("dense", 0.0)])
def test_trained_model_is_normalised_and_the_same_on_both(text, tmp_path, support, dropout):
    lm, corpus, _ = train(recipe(text, support, state_dropout=dropout), tmp_path / "run", "cuda")
    tokens = corpus.split("test")
    assert deviation_from_one(lm.hmm(), tokens, 16) < 1e-3
    on_gpu = evaluate(lm.hmm(), tokens).perplexity
    lm.to("cpu", "bfloat16")
    assert deviation_from_one(lm.hmm(), tokens, 16) < 1e-3
    assert evaluate(lm.hmm(), tokens).perplexity == pytest.approx(on_gpu, rel=5e-3)


def test_stopped_run_resumes(text, tmp_path):
    wanted = recipe(text, state_dropout=0.5)
    _, _, whole = train(wanted, tmp_path / "whole", "cuda")
    train(wanted, tmp_path / "parts", "cuda", stop_at=20)
    _, _, parts = train(wanted, tmp_path / "parts", "cuda", resume=True)
    assert len(parts) == STEPS
    for a, b in zip(whole, parts, strict=True):
        assert a == pytest.approx(b, rel=1e-2)


def test_commands(text, tmp_path, capsys):
    run = str(tmp_path / "run")
    sizes = ["--states", "64", "--blocks", "8", "--width", "32", "--batch", "4", "--epochs", "1"]
    main(["train", "--data", str(text), *sizes, "--out", run, "--json", "--device", "cuda"])
    result = json.loads(capsys.readouterr().out)
    assert result["device"].startswith("cuda")
    main(["eval", run, "--check-normalised", "--device", "cuda", "--json"])
    assert json.loads(capsys.readouterr().out)["largest_deviation_from_one"] < 1e-3


def test_questions_on_a_gpu(text, tmp_path):
    lm, corpus, _ = train(recipe(text, state_dropout=0.5), tmp_path / "run", "cuda")
    lm.save_pretrained(tmp_path / "model")
    hmm = lm.hmm()
    plain = HMMLM.from_pretrained(tmp_path / "model").to("cpu", "bfloat16").hmm()
    ids = torch.from_numpy(corpus.split("test")[:40].astype("int64")).view(4, 10)
    for ask in ("next_token", "log_prob"):
        torch.testing.assert_close(
            getattr(hmm, ask)(ids).cpu(), getattr(plain, ask)(ids), rtol=1e-2, atol=2e-2
        )
    torch.testing.assert_close(
        hmm.posterior(ids).marginals.cpu(), plain.posterior(ids).marginals, rtol=0, atol=2e-2
    )
    assert hmm.viterbi(ids).states.shape == (4, 10)
    generator = torch.Generator("cuda").manual_seed(0)
    assert hmm.sample(3, length=5, generator=generator).shape == (3, 5)


@pytest.mark.parametrize("kind", KINDS)
def test_rules_on_a_gpu(kind):
    plain = random_hmm(kind, states=12, vocabulary=8, dtype=torch.float32)
    hmm = plain.to("cuda")
    rule = c.contains([[1, 2], [3]]) & ~c.contains([[5]])
    expected = plain.rule_log_prob(rule, 12, [4])
    torch.testing.assert_close(hmm.rule_log_prob(rule, 12, [4]).cpu(), expected)
    torch.testing.assert_close(
        hmm.next_token([[4], [2]], rule=rule, remaining=9).cpu(),
        plain.next_token([[4], [2]], rule=rule, remaining=9),
    )
    generator = torch.Generator("cuda").manual_seed(0)
    for temperature in (1.0, 0.5):
        rules = [rule, c.starts_with([6]) & c.length(3, 5)] * 20
        texts = hmm.sample(
            40, generator=generator, rule=rules, max_length=13, temperature=temperature
        )
        for one, text in zip(rules, texts.tolist(), strict=True):
            assert one.matches(text[: text.index(0)])


def written(lm, capture, rows=64, steps=100, exact=True):
    """A shard of the text that a model writes, captured or not."""
    source = FromProbabilities([lm.stepper()], rows, 1.0, 1.0)
    assert source.capturable
    source.capturable = capture
    precision = contextlib.nullcontext if exact else tensor_float_32
    streams = Streams(source, rows, steps, lm.end, sentences=False, precision=precision)
    shards = [streams.shard(randomness.key(1, number)) for number in (0, 1, 0)]
    assert (streams.graph is not None) == capture
    assert torch.equal(shards[0]["tokens"], shards[2]["tokens"])
    assert not torch.equal(shards[0]["tokens"][:50], shards[1]["tokens"][:50])
    return shards[0]


NETWORKS = ("lstm", "awd-lstm", "feed-forward", "transformer")


@pytest.mark.parametrize("kind", NETWORKS)
def test_text_is_written_by_a_graph(text, tmp_path, kind):
    """The same as without one, but for draws that rounding decides; probabilities as on a CPU."""
    wanted = other_recipe(text, kind)
    lm, _, _ = train(wanted, tmp_path / "run", "cuda")
    captured, eager = (written(lm, capture) for capture in (True, False))
    beginnings = [
        [row[:100].tolist() for row in shard["tokens"].split(shard["bounds"].diff().tolist())]
        for shard in (captured, eager)
    ]
    same = sum(one == other for one, other in zip(*beginnings, strict=True))
    assert len(beginnings[0]) == 64 and same >= 60
    lm.to("cpu")
    for first, last in list(itertools.pairwise(captured["bounds"].tolist()))[:8]:
        row = captured["tokens"][first:last].long().unsqueeze(0)
        expected = float(lm.predictor().log_prob(row))
        assert float(captured["log_probs"][first:last].sum()) == pytest.approx(expected, rel=1e-2)


@pytest.mark.parametrize("exact", [True, False])
def test_written_text_follows_the_distribution(text, tmp_path, exact):
    """First words and pairs of words of 20,000 rows that a graph wrote."""
    lm, _, _ = train(other_recipe(text, "lstm"), tmp_path / "run", "cuda")
    rows = 20_000
    source = FromProbabilities([lm.stepper()], rows, 1.0, 1.0)
    precision = contextlib.nullcontext if exact else tensor_float_32
    streams = Streams(source, rows, 2, None, sentences=False, precision=precision)
    found = streams.shard(randomness.key(3, 0))["tokens"].view(rows, 2).long()
    size = lm.tokenizer.size
    first = lm.predictor().next_token(torch.zeros(1, 0, dtype=torch.long))[0].double()
    second = lm.predictor().next_token(torch.arange(size).unsqueeze(1)).double()
    expected = rows * (first.unsqueeze(1) + second).exp().flatten().cpu()
    counts = torch.bincount(found[:, 0] * size + found[:, 1], minlength=size**2)
    often = expected > 10
    statistic = float(((counts - expected)[often] ** 2 / expected[often]).sum())
    freedom = int(often.sum())
    assert freedom > 100 and abs(statistic - freedom) < 5 * (2 * freedom) ** 0.5


def test_a_corpus_is_written_and_trained_on(text, tmp_path, capsys):
    """By a network, and by several models of which one is not captured; then mixed training."""
    runs = {"lstm": ["--width", "32"], "ngram": ["--order", "3"]}
    for family, flags in runs.items():
        to = ["--family", family, *flags, "--epochs", "1", "--out", str(tmp_path / family)]
        main(["train", "--data", str(text), *to, "--json"])
    for name, teachers in {"one": ["lstm"], "both": ["lstm", "ngram"]}.items():
        folders = [str(tmp_path / teacher) for teacher in teachers]
        to = ["--tokens", "30k", "--batch", "128", "--out", str(tmp_path / name), "--json"]
        capsys.readouterr()
        main(["write", *folders, *to])
        found = json.loads(capsys.readouterr().out)
        assert sum(found["tokens"].values()) >= 30_000
        assert found["source"]["device"].startswith("cuda")
        assert 1 < found["source"]["perplexity"] < 62


@pytest.mark.parametrize("support, transitions", [("blocked", "two-level"), ("dense", "flat")])
def test_two_texts_captured(text, tmp_path, support, transitions):
    """Rows that begin anew at different steps; as without a graph, as on a CPU, and resumed."""
    other = tmp_path / "other.txt"
    lines = text.read_text().splitlines()
    other.write_text("\n".join(lines[::-20]))  # it is over after 16 steps
    mixed = {"more": str(other), "share": 0.75, "real_epochs": 0.83}  # the last after 40

    def wanted(**training):
        asked = recipe(text, support, state_dropout=0.5 * (support == "blocked"), **training)
        return asked.changed(options={"transitions": transitions}, mixed=mixed)

    _, _, captured = train(wanted(), tmp_path / "captured", "cuda")
    _, _, eager = train(wanted(capture=False), tmp_path / "eager", "cuda")
    _, _, on_cpu = train(wanted(), tmp_path / "cpu", "cpu")
    assert len(captured) == STEPS
    assert captured == pytest.approx(eager, rel=1e-2) and captured == pytest.approx(
        on_cpu, rel=1e-2
    )
    train(wanted(), tmp_path / "parts", "cuda", stop_at=20)
    _, _, parts = train(wanted(), tmp_path / "parts", "cuda", resume=True)
    assert parts == pytest.approx(captured, rel=1e-2)
