"""Tiny runs: the loss falls, the best model is kept, and a run that diverges says so."""

import contextlib
import math
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bighmm.lm.evaluation import deviation_from_one
from bighmm.lm.hmmlm import HMMLM
from bighmm.train import loop
from bighmm.train.checkpoint import load_checkpoint
from bighmm.train.loop import Diverged, Stopped, Training
from bighmm.train.recipe import from_dict
from bighmm.train.setup import new_model, open_data
from watching import Watcher, logged, losses

STEP = {"kind", "step", "total_steps", "epoch", "loss", "lr", "tokens", "seconds"}
CHECK = {"kind", "step", "perplexity", "log_prob", "tokens", "convention", "vocabulary"}


@pytest.fixture(autouse=True)
def one_thread():
    """Tiny models gain nothing by more, and lose much where the other cores are busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """300 lines of 40 words; each word is followed by one of three others."""
    draw = random.Random(0)
    lines = []
    for _ in range(300):
        words = [draw.randrange(40)]
        for _ in range(5):
            words.append((7 * words[-1] + draw.randrange(3)) % 40)
        lines.append(" ".join(f"w{word:02}" for word in words))
    path = tmp_path_factory.mktemp("text") / "tiny.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def start(text, tmp_path):
    """start(model={}, training={}, ...) is a `Training` that has not begun."""

    def start(*, model=None, parameters=None, training=None, run="run"):
        settings = {
            "corpus": {"data": str(text)},
            "model": {"states": 24, "blocks": 4, "alive": 12} | (model or {}),
            "training": {
                "epochs": 1,
                "batch": 8,
                "window": 8,
                "device": "cpu",
                "lr": 0.03,
                "state_dropout": 0,
            }
            | (training or {}),
        }
        neural = settings["model"].get("parameters", "neural") == "neural"
        settings["parameters"] = parameters or ({"width": 8} if neural else {})
        recipe = from_dict(settings, "the test")
        corpus = open_data(recipe.corpus)
        return Training(recipe, corpus, new_model(recipe, corpus), tmp_path / run, Watcher())

    return start


def poison_at(training, step):
    """Let a parameter be NaN when `step` begins."""
    batches, batch = training.batches, training.batches.batch

    def poisoned(number):
        if number == step - 1:
            with torch.no_grad():
                next(training.lm.params.parameters()).view(-1)[0] = math.nan
        return batch(number)

    batches.batch = poisoned


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("parameters", ["neural", "scalar"])
@pytest.mark.parametrize("support", ["dense", "blocked", "per-token"])
def test_training_lowers_the_loss_and_keeps_a_distribution(start, support, parameters, dropout):
    training = start(
        model={"support": support, "parameters": parameters},
        training={"state_dropout": dropout, "lr": 0.1, "epochs": 2},
    )
    best = training.run()
    found = losses(training.run_folder)
    assert len(found) == training.total_steps == training.step
    assert np.mean(found[-10:]) < np.mean(found[:10]) - 0.1
    perplexities = training.observer.perplexities
    assert best == min(perplexities) < perplexities[0]
    lm = HMMLM.from_pretrained(training.run_folder / "model")
    assert lm.perplexity(training.corpus, split="valid").perplexity == pytest.approx(best)
    assert deviation_from_one(lm.hmm(), training.corpus.split("test"), contexts=16) < 1e-5


@pytest.mark.parametrize("stops", [False, True])
def test_the_log_is_closed_at_the_end(start, stops):
    training, opened = start(), []
    write = training.log.write

    def watched(kind, values):
        write(kind, values)
        opened.append(training.log.file)

    training.log.write = watched
    with pytest.raises(Stopped) if stops else contextlib.nullcontext():
        training.run(lambda: stops)
    assert opened and all(file.closed for file in opened)


@pytest.mark.parametrize("kind", ["streams", "sentences", "windows"])
@pytest.mark.parametrize("schedule", ["plateau", "cosine", "constant"])
def test_every_kind_of_batches_and_schedule(start, kind, schedule):
    training = start(training={"batches": kind, "schedule": schedule, "epochs": 2})
    training.run()
    found = losses(training.run_folder)
    assert np.mean(found[-5:]) < np.mean(found[:5]) - 0.1
    steps = training.batches.steps_per_epoch
    assert training.step == 2 * steps
    tokens = [entry["tokens"] for entry in logged(training.run_folder, "step")]
    assert tokens[steps - 1] == len(training.corpus.split("train"))  # an epoch is every token
    assert tokens[-1] == 2 * tokens[steps - 1]


def test_neural_options_can_be_trained(start):
    training = start(parameters={"width": 8, "entering": "mlp", "embeddings": "factored"})
    training.run()
    found = losses(training.run_folder)
    assert np.mean(found[-5:]) < np.mean(found[:5]) - 0.1


def test_a_carried_state_is_what_streams_are_for(start):
    """With lr next to nothing, the losses of a stream's windows are those of the whole stream."""
    training = start(training={"lr": 1e-12, "batch": 1, "window": 30})
    training.run()
    stream, _ = training.batches._epoch(0)
    ids = torch.from_numpy(stream.astype(np.int64)).unsqueeze(0)
    lengths = np.diff([0] + [entry["tokens"] for entry in logged(training.run_folder, "step")])
    total = -float(np.dot(losses(training.run_folder), lengths))
    with torch.no_grad():
        assert total == pytest.approx(float(training.lm.hmm().log_prob(ids)), rel=1e-5)
        cut = sum(float(training.lm.hmm().log_prob(part)) for part in ids.split(30, dim=1))
    assert abs(total - cut) > 1e-3  # the windows by themselves are another model


def test_log_is_complete(start):
    training = start(training={"epochs": 1.5, "warmup": 0.2})
    training.run()
    steps, checks = logged(training.run_folder, "step"), logged(training.run_folder, "check")
    assert [entry["step"] for entry in steps] == list(range(1, training.total_steps + 1))
    for entry, report in zip(steps, training.observer.reports, strict=True):
        assert entry.keys() == STEP
        assert entry["loss"] == report.loss and math.isfinite(report.loss)
        assert entry["lr"] == training.schedule.rate(entry["step"] - 1)
        assert entry["total_steps"] == training.total_steps
        assert entry["epoch"] == entry["step"] / training.batches.steps_per_epoch
    for key in ("tokens", "seconds"):
        values = [entry[key] for entry in steps]
        assert values[0] > 0 and values == sorted(set(values))
    per_epoch = training.batches.steps_per_epoch
    quarters = [round(i * per_epoch / 4) for i in range(1, 6)]
    assert [entry["step"] for entry in checks] == [*quarters, training.total_steps]
    for entry, (step, valid, best) in zip(checks, training.observer.checks, strict=True):
        assert entry.keys() == CHECK | {"split", "best"}
        assert (entry["step"], entry["perplexity"], entry["best"]) == (step, valid.perplexity, best)
        assert entry["tokens"] == len(training.corpus.split("valid"))
        assert entry["split"] == "valid" and entry["convention"] == "reset"


def test_best_model_is_kept_and_not_the_last(start, monkeypatch):
    """Validation is made to get worse after the second check."""
    training = start(training={"epochs": 1, "lr": 0.1})
    saved = []

    def worse(lm, corpus, **options):
        number = len(saved)
        saved.append({k: v.clone() for k, v in training.lm.params.state_dict().items()})
        valid = honest(lm, corpus, **options)
        return valid if number < 2 else type(valid)(999.0, -1e9, valid.tokens, "reset", "", "valid")

    honest = HMMLM.perplexity
    monkeypatch.setattr(HMMLM, "perplexity", worse)
    best = training.run()
    assert [is_best for _, _, is_best in training.observer.checks] == [True, True, False, False]
    assert best == training.observer.checks[1][1].perplexity
    kept = HMMLM.from_pretrained(training.run_folder / "model").params.state_dict()
    assert all(torch.equal(kept[name], saved[1][name]) for name in kept)
    assert not all(torch.equal(kept[name], saved[3][name]) for name in kept)


def test_plateau_lowers_the_rate(start, monkeypatch):
    flat = start().lm.perplexity(start().corpus, split="valid")
    monkeypatch.setattr(HMMLM, "perplexity", lambda *_, **__: flat)
    training = start(training={"schedule": "plateau", "lr": 0.02, "epochs": 4})
    training.run()
    rates = {entry["step"]: entry["lr"] for entry in logged(training.run_folder, "step")}
    checks = [entry["step"] for entry in logged(training.run_folder, "check")]
    assert len(checks) == 16
    eighth_without_improvement = checks[8]
    assert all(r == (0.02 if s <= eighth_without_improvement else 0.005) for s, r in rates.items())


def test_resumed_plateau_knows_how_long_it_waited(start, monkeypatch):
    flat = start().lm.perplexity(start().corpus, split="valid")
    monkeypatch.setattr(HMMLM, "perplexity", lambda *_, **__: flat)
    options = {"schedule": "plateau", "plateau_patience": 2, "epochs": 1.5}
    whole = start(training=options, run="whole")
    whole.run()
    expected = [entry["lr"] for entry in logged(whole.run_folder, "step")]
    assert len(set(expected)) == 3
    for stop in (10, 17, 25):  # after the first, the second and the third check
        run = f"run{stop}"
        stopped = start(training=options, run=run)
        with pytest.raises(Stopped):
            stopped.run(lambda stopped=stopped, stop=stop: stopped.step == stop)
        resumed = start(training=options, run=run)
        resumed.resume()
        resumed.run()
        assert [entry["lr"] for entry in logged(resumed.run_folder, "step")] == expected


def test_clipping_bounds_the_gradient(start):
    training = start(training={"clip": 1e-3})
    training.runner.run(0, 1)
    squares = [p.grad.square().sum() for p in training.lm.params.parameters()]
    assert float(sum(squares)) ** 0.5 == pytest.approx(1e-3, rel=1e-3)
    free = start(training={"clip": 0}, run="free")
    free.runner.run(0, 1)
    assert float(sum(p.grad.square().sum() for p in free.lm.params.parameters())) ** 0.5 > 1e-2


def test_a_finished_run_can_be_loaded_and_has_nothing_to_do(start):
    training = start(training={"state_dropout": 0.5})
    best = training.run()
    again = start(training={"state_dropout": 0.5})
    again.resume()
    assert again.step == training.step and again.run() == best
    assert len(losses(training.run_folder)) == training.total_steps
    assert again.observer.reports == []


@pytest.mark.parametrize("kind", ["streams", "sentences", "windows"])
@pytest.mark.parametrize("schedule", ["plateau", "cosine"])
def test_stopped_run_goes_on_as_if_it_had_not_been(start, kind, schedule):
    options = {
        "batches": kind,
        "schedule": schedule,
        "plateau_patience": 1,
        "checks_per_epoch": 8,
        "state_dropout": 0.5,
        "lr": 0.1,
    }
    whole = start(training=options, run="whole")
    whole.run()
    stopped = start(training=options)
    with pytest.raises(Stopped):
        stopped.run(lambda: stopped.step == 9)
    assert len(losses(stopped.run_folder)) == 9
    resumed = start(training=options)
    resumed.resume()
    assert resumed.step == 9
    assert resumed.run() == whole.best
    assert losses(resumed.run_folder) == losses(whole.run_folder)
    rates = [[entry["lr"] for entry in logged(run.run_folder, "step")] for run in (resumed, whole)]
    assert rates[0] == rates[1]
    parameters = zip(resumed.lm.params.parameters(), whole.lm.params.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in parameters)


def test_damaged_checkpoint_costs_one_checkpoint_only(start):
    whole = start(run="whole")
    whole.run()
    stopped = start()
    with pytest.raises(Stopped):
        stopped.run(lambda: stopped.step == 20)
    (stopped.run_folder / "checkpoint" / "tensors.safetensors").write_bytes(b"")
    resumed = start()
    resumed.resume()
    assert 0 < resumed.step < 20
    assert len(resumed.observer.sentences) == 1
    assert "going on from the checkpoint before it" in resumed.observer.sentences[0]
    resumed.run()
    assert losses(resumed.run_folder) == losses(whole.run_folder)


def saves_by_the_clock(training, monkeypatch, saving):
    """The steps that are saved if a step takes 10 seconds and a save `saving`."""
    now, steps, run = [0.0], [], training.runner.run

    def step_on(step, count):
        now.append(now[-1] + 10 * count)
        return run(step, count)

    def save(_, made):
        now.append(now[-1] + saving)
        steps.append(made.state["step"])

    monkeypatch.setattr(loop, "time", SimpleNamespace(monotonic=lambda: now[-1]))
    monkeypatch.setattr(loop, "save_checkpoint", save)
    monkeypatch.setattr(training.runner, "run", step_on)
    training.run()
    return steps


def test_checkpoints_are_saved_by_the_clock_too(start, monkeypatch):
    """Every minute, and at the end."""
    training = start(training={"checkpoint_at_checks": False})
    assert saves_by_the_clock(training, monkeypatch, saving=1) == [7, 14, 21, 28, 30]


def test_checkpoints_that_take_long_are_few(start, monkeypatch):
    """No more than 5 % of the time: 9 seconds in 180, after the first."""
    training = start(training={"checkpoint_at_checks": False})
    assert saves_by_the_clock(training, monkeypatch, saving=9) == [7, 26, 30]


def test_global_random_state_does_not_matter(start):
    options = {"state_dropout": 0.5}
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        training = start(training=options, run=f"run{seed}")
        before = torch.random.get_rng_state(), np.random.get_state()[1], random.getstate()
        training.run()
        after = torch.random.get_rng_state(), np.random.get_state()[1], random.getstate()
        assert torch.equal(before[0], after[0]) and (before[1] == after[1]).all()
        assert before[2] == after[2]
        found.append(losses(training.run_folder))
    assert found[0] == found[1]
    other = start(training=options | {"seed": 2}, run="other")
    other.run()
    assert losses(other.run_folder) != found[0]


def test_diverged_run_keeps_its_last_good_checkpoint(start):
    training = start(training={"state_dropout": 0.5})
    poison_at(training, 20)
    with pytest.raises(Diverged, match=r"^the run diverged at step 20: the loss is nan; ") as error:
        training.run()
    assert "\n" not in str(error.value) and str(training.run_folder) in str(error.value)
    assert len(losses(training.run_folder)) == 19  # the bad step is not logged
    checkpoint, warning = load_checkpoint(training.run_folder)
    assert warning is None and 0 < checkpoint.state["step"] < 20
    assert all(t.isfinite().all() for n, t in checkpoint.tensors.items() if "log_alpha" not in n)
    HMMLM.from_pretrained(training.run_folder / "model")
    resumed = start(training={"state_dropout": 0.5})
    resumed.resume()
    resumed.run()
    whole = start(training={"state_dropout": 0.5}, run="whole")
    whole.run()
    assert losses(resumed.run_folder) == losses(whole.run_folder)


@pytest.mark.parametrize("parameters", ["neural", "scalar"])
@pytest.mark.parametrize("lr", [1e3, 1e10, 1e30])
def test_enormous_learning_rate(start, parameters, lr):
    training = start(model={"parameters": parameters}, training={"lr": lr, "clip": 0})
    with pytest.raises(Diverged, match=r"diverged at step \d+: the .* is (nan|inf); ") as error:
        training.run()
    assert f"a lower learning rate than {lr} may help" in str(error.value)


def test_divergence_before_the_first_checkpoint(start):
    training = start()
    poison_at(training, 1)
    with pytest.raises(Diverged, match=r"at step 1: .*nothing was saved yet"):
        training.run()
    with pytest.raises(ValueError, match="no checkpoint"):
        load_checkpoint(training.run_folder)


def test_infinite_gradient_of_a_finite_loss(start):
    training = start()
    word_bias = training.lm.params.word_bias
    word_bias.register_hook(lambda grad: torch.full_like(grad, torch.inf))
    before = [p.detach().clone() for p in training.lm.params.parameters()]
    with pytest.raises(Diverged, match="at step 1: the gradient's norm is"):
        training.run()
    after = training.lm.params.parameters()
    assert all(torch.equal(one, other) for one, other in zip(before, after, strict=True))
