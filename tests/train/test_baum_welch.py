"""Baum-Welch: by enumeration, the likelihood that never falls, and runs like any others."""

import copy
import dataclasses
import math
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from bighmm import HMM, baum_welch
from bighmm.infer.counts import Counting
from bighmm.infer.reference import Enumeration
from bighmm.infer.sequences import Carry, validate
from bighmm.lm.evaluation import deviation_from_one
from bighmm.lm.hmmlm import HMMLM
from bighmm.model.support import PerToken
from bighmm.model.transitions import Table
from bighmm.train.expectation_maximisation import (
    ExpectationMaximisation,
    Pseudocounts,
    improved,
)
from bighmm.train.loop import Stopped, Training
from bighmm.train.recipe import from_dict, read_recipe
from bighmm.train.runner import on_device
from bighmm.train.setup import new_model, open_data
from models import dense_twin, ragged, random_hmm
from watching import Watcher, logged

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("dense-table", "blocked-table", "per_token-flat")
SUPPORTS = ("dense", "blocked", "per-token")
NEVER = -torch.inf


def probabilities(hmm):
    """start (Z,), transition (Z, Z) and emission (Z, V) as lists of numbers."""
    return [table.tolist() for table in hmm.tables()]


def by_enumeration(hmm, tokens, lengths, step_size, smoothing):
    """One iteration in plain Python, from all paths of all rows."""
    size, words = hmm.num_states, hmm.vocabulary_size
    counts = [
        [0.0] * size,
        [[0.0] * size for _ in range(size)],
        [[0.0] * words for _ in range(size)],
    ]
    for row, n in zip(tokens.tolist(), lengths.tolist(), strict=True):
        all_paths = Enumeration(hmm, row[:n])
        for path, prob in all_paths.paths.items():
            share = float(prob / all_paths.prob)
            for t, (state, token) in enumerate(zip(path, row[:n], strict=True)):
                counts[2][state][token] += share
                if t == 0 or (hmm.reset and row[t - 1] == hmm.end):
                    counts[0][state] += share
                else:
                    counts[1][path[t - 1]][state] += share

    def mixed(old, counted):
        if sum(counted) == 0:
            return old
        counted = [n + smoothing if p > 0 else 0.0 for n, p in zip(counted, old, strict=True)]
        shares = [n / sum(counted) for n in counted]
        return [step_size * n + (1 - step_size) * p for n, p in zip(shares, old, strict=True)]

    start, transition, emission = probabilities(hmm)
    return (
        mixed(start, counts[0]),
        [mixed(*rows) for rows in zip(transition, counts[1], strict=True)],
        [mixed(*rows) for rows in zip(emission, counts[2], strict=True)],
    )


@pytest.mark.parametrize("step_size, smoothing", [(1.0, 0.0), (0.3, 0.0), (0.8, 0.5)])
@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_one_iteration_against_enumeration(kind, reset, step_size, smoothing):
    hmm = random_hmm(kind, states=6, vocabulary=4, reset=reset, seed=5)
    tokens, lengths = ragged(4, [4, 1, 0, 3], seed=5)
    tokens[0, 1] = hmm.end
    found = baum_welch(hmm, tokens, lengths, iterations=1, step_size=step_size, smoothing=smoothing)
    expected = by_enumeration(hmm, tokens, lengths, step_size, smoothing)
    for table, wanted in zip(found.hmm.tables(), expected, strict=True):
        torch.testing.assert_close(table, torch.tensor(wanted).double())
    assert found.log_probs == pytest.approx([float(hmm.log_prob(tokens, lengths).sum())])


@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 2**16),
    states=st.sampled_from([2, 3, 6]),
    scale=st.sampled_from([0.3, 1.0, 5.0]),
    step_size=st.sampled_from([1.0, 0.9, 0.5, 0.05]),
    reset=st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_the_likelihood_never_falls(kind, seed, states, scale, step_size, reset):
    hmm = random_hmm(kind, states, vocabulary=5, seed=seed, scale=scale, reset=reset)
    tokens, lengths = ragged(5, [9, 4, 1, 0, 7], seed=seed)
    found = baum_welch(hmm, tokens, lengths, iterations=10, step_size=step_size)
    after = float(found.hmm.log_prob(tokens, lengths).sum())
    values = np.array([*found.log_probs, after])
    assert np.isfinite(values).all()
    assert (np.diff(values) >= -1e-9 * np.abs(values[1:])).all()
    for table in found.hmm.tables():
        torch.testing.assert_close(table.sum(-1), torch.ones_like(table.sum(-1)))


@pytest.mark.parametrize("step_size", [1.0, 0.4])
@pytest.mark.parametrize("kind", KINDS)
def test_with_smoothing_it_is_the_likelihood_with_a_prior_that_never_falls(kind, step_size):
    hmm, smoothing = random_hmm(kind, states=6, vocabulary=5, seed=8, scale=3.0), 0.2
    tokens, lengths = ragged(5, [9, 4, 7], seed=8)
    values = []
    for _ in range(12):
        tables = torch.cat([table.reshape(-1) for table in hmm.tables()])
        prior = smoothing * tables[tables > 0].log().sum()
        values.append(float(hmm.log_prob(tokens, lengths).sum() + prior))
        hmm = baum_welch(
            hmm, tokens, lengths, iterations=1, step_size=step_size, smoothing=smoothing
        ).hmm
    assert (np.diff(values) >= -1e-9 * np.abs(values[1:])).all()
    assert values[-1] > values[0] + 1


def test_as_the_benchmark_does_it(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    em_pass = pytest.importorskip("em_pass")
    problem = em_pass._problem(em_pass.Shape(states=7, words=11, tokens=60, length=13))
    log_prob, *expected = em_pass._ours(*problem)
    *given, ids, lengths = (torch.from_numpy(x) for x in problem)
    rows = torch.nn.utils.rnn.pad_sequence(ids.split(lengths.tolist()), batch_first=True)
    found = baum_welch(HMM.from_probs(*given), rows, lengths, iterations=1)
    assert found.log_probs == pytest.approx([float(log_prob)], rel=1e-5)
    for table, wanted in zip(found.hmm.tables(), expected, strict=True):
        torch.testing.assert_close(table.float(), torch.from_numpy(wanted))
    sys.modules.pop("em_pass")


def test_learns_the_weather():
    """The forecast of a fitted model is better than chance where the text has an order."""
    hmm = random_hmm("dense-table", states=4, vocabulary=3, seed=1, end=None)
    tokens = torch.tensor([[0, 1, 2] * 6])
    found = baum_welch(hmm, tokens, iterations=60)
    assert found.log_probs[0] < -15 and found.log_probs[-1] > -2
    assert len(found.log_probs) == 60
    assert int(found.hmm.next_token(tokens).argmax()) == 0


@pytest.mark.parametrize("smoothing", [0.0, 0.5])
def test_what_is_impossible_stays_so_and_what_is_possible_too(smoothing):
    hmm = HMM.from_probs(
        torch.tensor([0.5, 0.5, 0.0]),
        torch.tensor([[0.6, 0.2, 0.2], [0.0, 0.7, 0.3], [0.5, 0.5, 0.0]]),
        torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.0, 0.2, 0.4, 0.4], [0.1, 0.3, 0.3, 0.3]]).double(),
    )
    tokens = torch.tensor([[1, 2, 1, 2, 2], [0, 1, 1, 2, 0]])  # and never 3
    found = baum_welch(hmm, tokens, iterations=30, smoothing=smoothing).hmm
    for old, new in (
        (hmm.start, found.start),
        (hmm.transitions.table, found.transitions.table),
        (hmm.emission, found.emission),
    ):
        assert torch.equal(old > NEVER, new > NEVER)
    unseen = found.emission[3, 1:].exp()
    assert (unseen > 0.01).all() if smoothing else (unseen < 1e-300).all() and (unseen > 0).all()


@pytest.mark.parametrize("smoothing", [0.0, 0.5])
def test_a_state_that_the_text_does_not_use_keeps_what_it_has(smoothing):
    hmm = random_hmm("blocked-table", states=6, vocabulary=6, seed=2)  # three blocks of two states
    tokens = torch.tensor([[0, 3, 0, 3, 3]])  # of the first
    found = improved(hmm, hmm.expected_counts(tokens), smoothing=smoothing)
    for old, new in zip(hmm.tables()[1:], found.tables()[1:], strict=True):
        torch.testing.assert_close(new[2:], old[2:], rtol=1e-14, atol=0)
        assert not torch.allclose(new[:2], old[:2])


def test_places_of_a_free_support_that_no_state_has():
    support = PerToken(torch.tensor([[0, 1], [1, 2], [2, -1]]), 3)
    logits = torch.tensor([[0.5, 0.5], [0.5, 0.5], [0.5, 0.0]], dtype=torch.float64)
    emission = logits.log()
    hmm = random_hmm("dense-table", states=3, vocabulary=3, seed=1)
    hmm = HMM(hmm.start, hmm.transitions, emission, support)
    tokens = torch.tensor([[0, 1, 2, 0, 2, 1]])
    found = baum_welch(hmm, tokens, iterations=5, smoothing=0.1).hmm
    assert found.emission[2, 1] == NEVER
    twin = baum_welch(dense_twin(hmm), tokens, iterations=5, smoothing=0.1).hmm
    for one, other in zip(found.tables(), twin.tables(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"iterations": 0}, "iterations must be at least 1"),
        ({"step_size": 0}, "step_size must be above 0 and at most 1, not 0"),
        ({"step_size": 1.5}, "step_size must be above 0 and at most 1"),
        ({"smoothing": -1}, "smoothing must be finite and not below 0"),
        ({"smoothing": math.nan}, "smoothing must be finite"),
    ],
)
def test_wrong_settings(options, message):
    with pytest.raises(ValueError, match=message):
        baum_welch(random_hmm("dense-table"), [[0, 1]], **options)


def test_a_row_that_cannot_be():
    hmm = random_hmm("dense-table")
    hmm.emission[3] = NEVER
    with pytest.raises(ValueError, match="row 1 of tokens has probability zero in this HMM"):
        baum_welch(hmm, [[0, 1], [3, 1]])


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
@pytest.mark.parametrize("scale", [1.0, 80.0])  # at the latter, kernels lose mass and give way
@pytest.mark.parametrize("reset", [True, False])
def test_kernels_for_dense_models(reset, scale):
    pytest.importorskip("triton")
    hmm = random_hmm(
        "dense-table", states=20, vocabulary=9, dtype=torch.float32, reset=reset, scale=scale
    )
    rounded = dataclasses.replace(hmm, transitions=Table(hmm.transitions.table, rounded=True))
    window = validate(hmm, *ragged(9, [7, 3, 0, 5], seed=1))
    first = validate(hmm, *ragged(9, [4, 4, 4, 4], seed=2))
    results = []
    for model, impl in ((hmm, "torch"), (rounded, "triton")):
        counting, carry = Counting(model, impl), Carry.at_start(model, 4)
        assert counting.with_kernels == (impl == "triton")
        log_probs = []
        for part in (first, window, window.window(0, 0)):
            log_prob, carry = counting.add(part, carry)
            log_probs.append(log_prob)
        results.append([*log_probs, *counting.sums, carry.log_alpha.exp()])
    for plain, fast in zip(*results, strict=True):
        torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """200 lines of 30 words; each word is followed by one of three others."""
    draw = random.Random(0)
    lines = []
    for _ in range(200):
        words = [draw.randrange(30)]
        for _ in range(draw.randrange(2, 7)):
            words.append((7 * words[-1] + draw.randrange(3)) % 30)
        lines.append(" ".join(f"w{word:02}" for word in words))
    path = tmp_path_factory.mktemp("text") / "tiny.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def start(text, tmp_path):
    """start(support, ...) is a `Training` that has not begun."""

    def start(support="dense", run="run", double=False, **training):
        recipe = from_dict(
            {
                "corpus": {"data": str(text)},
                "model": {
                    **{"states": 12, "blocks": 3, "alive": 6},
                    **{"support": support, "parameters": "scalar"},
                },
                "training": {
                    **{"epochs": 3, "batch": 16, "window": 8, "device": "cpu", "state_dropout": 0},
                    **{"optimizer": "baum-welch", "checks_per_epoch": 2.0},
                    **training,
                },
            },
            "the test",
        )
        corpus = open_data(recipe.corpus)
        lm = new_model(recipe, corpus)
        if double:
            lm.params.double()
        return Training(recipe, corpus, lm, tmp_path / run, Watcher())

    return start


def of_steps(training, key):
    return [entry[key] for entry in logged(training.run_folder, "step")]


@pytest.mark.parametrize("step_size", [1.0, 0.5])
@pytest.mark.parametrize("batches", ["sentences", "windows"])
@pytest.mark.parametrize("support", SUPPORTS)
def test_whole_text_in_one_step(start, support, batches, step_size):
    """Every step is the same text, so its loss is the likelihood of the function's iterations."""
    options = {"batches": batches, "full_batch": True, "step_size": step_size, "epochs": 6}
    training = start(support, double=True, schedule="constant", checks_per_epoch=0.5, **options)
    hmm = copy.deepcopy(training.lm.hmm())
    rows, size = [], len(training.corpus.split("train"))
    for place in range(training.batches.steps_per_epoch):
        batch = training.batches.batch(place)
        rows += [row[:n] for row, n in zip(batch.ids, batch.lengths, strict=True)]
    lengths = torch.tensor([len(row) for row in rows])
    tokens = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(row) for row in rows], True)
    training.run()
    losses = of_steps(training, "loss")
    assert training.step == training.total_steps == len(losses) == 6
    assert len(training.observer.checks) == 3
    assert of_steps(training, "tokens") == [size * (i + 1) for i in range(6)]
    found = baum_welch(hmm, tokens, lengths, iterations=6, step_size=step_size)
    assert losses == pytest.approx([-value / size for value in found.log_probs], rel=1e-9)
    assert (np.diff(losses) <= 1e-9).all() and losses[-1] < losses[0]
    for one, other in zip(training.lm.hmm().tables(), found.hmm.tables(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("batches", ["streams", "sentences", "windows"])
@pytest.mark.parametrize("support", SUPPORTS)
def test_batches_lower_the_loss_and_keep_a_distribution(start, support, batches):
    training = start(support, batches=batches, step_size=0.3, smoothing=0.01)
    best = training.run()
    losses = of_steps(training, "loss")
    assert len(losses) == training.total_steps == 3 * training.batches.steps_per_epoch
    assert np.mean(losses[-6:]) < np.mean(losses[:3]) - 0.1
    assert best == min(training.observer.perplexities) < training.observer.perplexities[0]
    lm = HMMLM.from_pretrained(training.run_folder / "model")
    assert lm.perplexity(training.corpus, split="valid").perplexity == pytest.approx(best)
    assert deviation_from_one(lm.hmm(), training.corpus.split("test"), contexts=8) < 1e-5


@pytest.mark.parametrize("batches", ["streams", "windows"])
def test_what_a_graph_captures_is_the_same_step(start, batches):
    options = {"batches": batches, "step_size": 0.3, "smoothing": 0.01}
    training, other = start(**options), start(run="other", **options)
    update = ExpectationMaximisation(other.lm.params, other.settings, other.schedule)
    key, state = torch.tensor(0), update.initial_state(16)
    for step in range(8):
        (done,) = training.runner.run(step, 1)
        batch = other.batches.batch(step)
        window = on_device(batch, other.lm.device)
        state = state if batch.continues else update.initial_state(16)
        size = torch.tensor(update.size(step))
        update.begin()
        loss, state = update.accumulate(window, state, key)
        norm = update.norm()
        update.apply(size)
        assert (float(loss), float(norm)) == pytest.approx((done.loss, done.norm), rel=1e-5)
        assert float(size) == pytest.approx(done.size)
    tables = zip(training.lm.params.parameters(), other.lm.params.parameters(), strict=True)
    for one, two in tables:
        torch.testing.assert_close(one, two)


def test_whole_steps_on_single_batches_stay_finite(start):
    """With α = 1 a model forgets the words that a batch does not have, all but a trace."""
    training = start(step_size=1.0, schedule="constant", batch=4, epochs=1)
    training.run()
    assert np.isfinite(of_steps(training, "loss")).all()
    assert np.isfinite(training.observer.perplexities).all()
    assert all(p.isfinite().all() for p in training.lm.params.parameters())


def test_the_step_size_follows_the_schedule(start):
    training = start(step_size=0.4, schedule="cosine", warmup=0.2, final_lr=0.1, lr=0.003)
    training.run()
    expected = [0.4 * training.schedule.rate(i) / 0.003 for i in range(training.total_steps)]
    sizes = of_steps(training, "lr")
    assert sizes == expected and max(sizes) == pytest.approx(0.4) and sizes[-1] < 0.05


def test_a_carried_state_is_what_streams_are_for(start):
    """With a step size next to nothing, the losses of windows are those of the whole stream."""
    training = start(step_size=1e-12, batch=1, window=30, epochs=1)
    training.run()
    stream, _ = training.batches._epoch(0)
    ids = torch.from_numpy(stream.astype(np.int64)).unsqueeze(0)
    lengths = np.diff([0, *of_steps(training, "tokens")])
    total = -float(np.dot(of_steps(training, "loss"), lengths))
    assert total == pytest.approx(float(training.lm.hmm().log_prob(ids)), rel=1e-5)
    cut = sum(float(training.lm.hmm().log_prob(part)) for part in ids.split(30, dim=1))
    assert abs(total - cut) > 1e-3


@pytest.mark.parametrize(
    "options",
    [{"batches": "streams"}, {"batches": "sentences", "smoothing": 0.1}, {"full_batch": True}],
    ids=["streams", "sentences", "full"],
)
@pytest.mark.parametrize("support", SUPPORTS)
def test_stopped_run_goes_on_as_if_it_had_not_been(start, support, options):
    options = {"step_size": 0.5, "epochs": 5 if "full_batch" in options else 1, **options}
    whole = start(support, run="whole", **options)
    whole.run()
    stopped = start(support, **options)
    with pytest.raises(Stopped):
        stopped.run(lambda: stopped.step == 3)
    resumed = start(support, **options)
    resumed.resume()
    assert resumed.step == 3 and resumed.run() == whole.best
    assert of_steps(resumed, "loss") == of_steps(whole, "loss")
    parameters = zip(resumed.lm.params.parameters(), whole.lm.params.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in parameters)


class Largest(TorchDispatchMode):
    """The most numbers that any tensor had."""

    numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        for tensor in found if isinstance(found, tuple | list) else (found,):
            if isinstance(tensor, torch.Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return found


def test_nothing_is_as_large_as_batch_times_states_times_states(start):
    training = start(batches="windows", batch=16, window=2)
    with Largest() as largest:
        training.runner.run(0, 1)
    vocabulary = training.corpus.tokenizer.size
    assert 0 < largest.numbers <= max(12 * 12, 16 * 3 * 12, vocabulary * 12) < 16 * 12 * 12


def test_a_run_that_diverges_says_what_may_help(start):
    training = start(step_size=0.5)
    with torch.no_grad():
        training.lm.params.start[0] = math.nan
    message = "at step 1: the loss is nan; .* a smaller step_size than 0.5 or more smoothing may"
    with pytest.raises(ValueError, match=message):
        training.run()


@pytest.mark.parametrize(
    "model, training, message",
    [
        ({"parameters": "neural"}, {}, "it needs parameterisation = scalar, not neural"),
        ({"family": "lstm"}, {}, "it needs parameterisation = scalar, not lstm"),
        ({}, {"state_dropout": 0.5}, "no state dropout; set state_dropout to 0, not 0.5"),
        ({}, {"step_size": 0}, "step_size must be above 0 and at most 1, not 0.0"),
        ({}, {"step_size": 1.1}, "step_size must be above 0 and at most 1"),
        ({}, {"smoothing": -1}, "smoothing must be finite and not below 0"),
        ({}, {"optimizer": "adamw", "full_batch": True}, "full_batch is for .*baum-welch"),
    ],
)
def test_recipes_it_cannot_do(model, training, message):
    settings = {"optimizer": "baum-welch", "state_dropout": 0.0} | training
    with pytest.raises(ValueError, match=message) as error:
        from_dict({"model": {"parameters": "scalar"} | model, "training": settings}, "r.toml")
    assert "\n" not in str(error.value)


def test_from_the_command_line(ask, bighmm, text, tmp_path):
    wanted = ("train", "--data", text, "--optimizer", "baum-welch", "--step-size", 0.5)
    shape = ("--states", 12, "--support", "dense", "--epochs", 2, "--device", "cpu")
    refused = bighmm(*wanted, *shape, "--parameters", "scalar", "--out", tmp_path / "refused")
    assert refused.status == 2 and "set state_dropout to 0" in refused.err
    run = tmp_path / "run"
    options = ("--parameters", "scalar", "--state-dropout", 0, "--smoothing", 0.01, "--full-batch")
    result = ask(*wanted, *shape, *options, "--out", run)
    assert result["steps"] == 2
    assert result["recipe"]["training"]["optimizer"] == "baum-welch"
    assert bighmm("eval", run, "--check-normalised").status == 0
    shown = bighmm("train", "--help").out
    for flag in ("--optimizer", "--step-size", "--smoothing", "--full-batch"):
        assert flag in shown


def test_the_recipe_of_the_paper():
    recipe = read_recipe(ROOT / "papers" / "lee2025" / "recipes" / "baum-welch.toml")
    assert recipe.training.optimizer == "baum-welch" and recipe.model.support == "dense"


@pytest.mark.parametrize("kind", ["dense-table", "blocked-flat"])
def test_what_is_added_may_differ_between_tables(kind):
    hmm = random_hmm(kind, seed=4)
    counts = hmm.expected_counts(torch.tensor([[1, 2, 0, 3, 4, 2]]))
    added = Pseudocounts(0.5, torch.rand(hmm.num_states, hmm.num_states).double(), -0.01)
    found = HMM.of(improved(hmm, counts, smoothing=added))
    start = counts.start + 0.5
    torch.testing.assert_close(found.start.exp(), start / start.sum())
    moves = counts.transition + added.transition
    torch.testing.assert_close(
        found.transitions.log_probs().exp(), moves / moves.sum(1, keepdim=True)
    )
    words = (counts.emission - 0.01).clamp(min=0)
    shares = words / hmm.support.sum_by_state(words)
    torch.testing.assert_close(found.emission.exp()[words > 0], shares[words > 0])
    assert not found.emission.isnan().any()
