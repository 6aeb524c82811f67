"""Dropout on vectors, hidden words, decay by role and carried states: exact, and resumable."""

import itertools

import pytest
import torch

from bighmm.base import randomness
from bighmm.data.corpus import prepare
from bighmm.hmm import HMM
from bighmm.lm.opening import open_model
from bighmm.model import params
from bighmm.model.feature_dropout import FeatureRates, dropping
from bighmm.model.options import NeuralOptions, ScalarOptions
from bighmm.model.support import Blocked, Dense, PerToken
from bighmm.train.loop import Stopped
from bighmm.train.losses import LabelledLikelihood, Likelihood, Window
from bighmm.train.recipe import TrainingSettings, from_dict
from bighmm.train.run import train_run
from bighmm.train.update import decay_groups, make_optimizer
from watching import logged, losses

BLOCKED = Blocked.of(torch.arange(7) % 3, 12)
IDS = torch.tensor([[1, 2, 0, 4, 5], [6, 0, 1, 1, 2], [3, 3, 1, 0, 0]])
LENGTHS = torch.tensor([5, 5, 3])
WINDOW = Window(IDS, LENGTHS)
ALL = FeatureRates(0.3, 0.3, 0.3)


def build(support=BLOCKED, end=0, **options):
    return params.build("neural", NeuralOptions(width=8, **options), support, end, seed=1)


def loss_of(likelihood, step=0):
    found, _ = likelihood(WINDOW, likelihood.initial_state(3), randomness.key(1, step))
    return found.detach()


@pytest.mark.parametrize("rates", [ALL, FeatureRates(0.3, 0.3, 0.3, shared=True)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"embeddings": "split", "entering": "mlp"},
        {"embeddings": "factored"},
        {"monolithic": True, "layers": 1},
        {"network": "transformer", "layers": 1, "transitions": "flat"},
    ],
    ids=lambda options: "-".join(map(str, options.values())) or "plain",
)
@pytest.mark.parametrize("rounds", [False, True])
def test_a_step_trains_a_normalised_model(options, rates, rounds):
    module = build(**options)
    module.matmul_dtype = "bfloat16" if rounds else "float32"
    kept = BLOCKED.draw_kept(0.5, torch.tensor(3))
    plain = module(kept)
    with dropping(module, rates, torch.tensor(5)):
        model = module(kept)
    assert module.feature_dropout is None
    assert not torch.equal(model.emission, plain.emission)
    hmm = HMM.of(model)
    for context in ([], [1], [2, 5, 4]):
        total = hmm.next_token([context]).double().exp().sum()
        assert float(total) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("which", ["embeddings", "vectors", "words"])
def test_each_rate_has_an_effect_of_its_own(which):
    module = build()
    plain = loss_of(Likelihood(module, 0.5))
    first = loss_of(Likelihood(module, 0.5, FeatureRates(**{which: 0.4})))
    assert first != plain
    assert first == loss_of(Likelihood(module, 0.5, FeatureRates(**{which: 0.4})))
    assert torch.isfinite(first)


def test_a_state_loses_the_same_numbers_whichever_states_are_computed(monkeypatch):
    """With all states and with those of some blocks the step is the same."""
    module = build()
    likelihood = Likelihood(module, 0.5, ALL)
    some = loss_of(likelihood)
    monkeypatch.setattr(type(module), "for_some_blocks", False)
    torch.testing.assert_close(loss_of(likelihood), some)


def test_labelled_text_is_trained_with_it_too():
    module = build()
    states = BLOCKED.states(IDS)[..., 1]
    window = Window(IDS, LENGTHS, states)
    found = []
    for rates in (FeatureRates(), ALL):
        loss = LabelledLikelihood(module, rates)
        found.append(float(loss(window, loss.initial_state(3), randomness.key(1, 0))[0].detach()))
    assert found[0] != found[1]


def test_tables_have_no_vectors():
    module = params.build("scalar", ScalarOptions(), BLOCKED, 0)
    with pytest.raises(ValueError, match="needs a model that is computed from vectors"):
        Likelihood(module, 0.0, ALL)


def hidden_in(likelihood, step=0):
    return likelihood._hidden(*WINDOW.every, randomness.key(1, step))


@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize(
    "support", [BLOCKED, PerToken.random(7, 12, 5, 0)], ids=["blocked", "per-token"]
)
def test_hidden_words_are_summed_out(support, reset):
    """Against the sum over all state paths, in which a hidden word says only which states may be;
    in a blocked model that is also the sum over all words of its block."""
    transitions = "two-level" if support is BLOCKED else "flat"
    module = build(support, transitions=transitions).double()
    likelihood = Likelihood(module, 0.0, hidden_words=0.5, reset=reset)
    hidden = hidden_in(likelihood)
    assert hidden.any() and not hidden[IDS == 0].any()
    start, moves, emission = (t.detach() for t in HMM.of(module()).tables())
    total = 0.0
    for row, length, unknown in zip(IDS.tolist(), LENGTHS.tolist(), hidden, strict=True):
        alpha = start
        for t, token in enumerate(row[:length]):
            if t:
                alpha = start * alpha.sum() if reset and row[t - 1] == 0 else alpha @ moves
            here = torch.zeros(12, dtype=torch.float64)
            states = support.states(torch.tensor([token]))[0]
            here[states[states >= 0]] = 1.0
            alpha = alpha * (here if unknown[t] else emission[:, token])
        total += float(alpha.sum().log())
    words = int(LENGTHS.sum()) - int((hidden & (torch.arange(5) < LENGTHS.unsqueeze(1))).sum())
    # What is carried into the first window is in float32.
    assert float(loss_of(likelihood)) == pytest.approx(-total / words, rel=1e-7)


def test_a_hidden_word_is_any_word_of_its_block():
    module = build().double()
    likelihood = Likelihood(module, 0.0, hidden_words=0.5)
    hmm, hidden = HMM.of(module()), hidden_in(likelihood)
    total, words = 0.0, 0
    for row, length, unknown in zip(IDS.tolist(), LENGTHS.tolist(), hidden.tolist(), strict=True):
        choices = [
            [x for x in range(7) if x % 3 == token % 3] if unknown[t] else [token]
            for t, token in enumerate(row[:length])
        ]
        ends = [t for t, token in enumerate(row[:length]) if token == 0]
        total += _summed(hmm, list(itertools.product(*choices)), ends)
        words += sum(not u for u in unknown[:length])
    assert float(loss_of(likelihood)) == pytest.approx(-total / words, rel=1e-9)


def _summed(hmm, texts, ends):
    """log Σ p over texts that start anew after the places `ends`, and nowhere else: also an end
    mark in a hidden place, which is a word of its block, does not end the text there."""
    cuts = [0, *[e + 1 for e in ends]]
    parts = []
    for first, last in itertools.pairwise([*cuts, len(texts[0])]):
        if first < last:
            some = sorted({text[first:last] for text in texts})
            one = HMM(hmm.start, hmm.transitions, hmm.emissions, hmm.support, 0, reset=False)
            parts.append(one.log_prob([list(t) for t in some]).logsumexp(0))
    return float(torch.stack(parts).sum().detach())


def test_dense_models_hide_no_words():
    with pytest.raises(ValueError, match="a dense model has no blocks"):
        Likelihood(build(Dense(4, 7)), hidden_words=0.1)


def test_without_reset_the_state_goes_on():
    module = build().double()
    carried = Likelihood(module, reset=False)
    state, total = carried.initial_state(3), 0.0
    for part in (slice(0, 2), slice(2, 5)):  # in two windows
        window = Window(IDS[:, part], (LENGTHS - part.start).clamp(0, part.stop - part.start))
        loss, state = carried(window, state, randomness.key(1, 0))
        total += float(loss.detach()) * int(window.lengths.sum())
    model = module()
    one = HMM(model.start, model.transitions, model.emissions, model.support, 0, reset=False)
    expected = float(one.log_prob(IDS, LENGTHS).sum().detach())
    assert -total == pytest.approx(expected)
    assert float(loss_of(Likelihood(module))) * 13 != pytest.approx(total)


def test_groups_of_decay():
    module = build()
    names = {id(p): name for name, p in module.named_parameters()}

    def groups(**decays):
        found = decay_groups(module, TrainingSettings(**decays))
        return {g["weight_decay"]: [names[id(p)] for p in g["params"]] for g in found}

    assert list(groups(weight_decay=0.1)) == [0.1]
    assert groups(weight_decay=0.1)[0.1] == list(names.values())  # as it was, for old checkpoints
    found = groups(weight_decay=0.1, weight_decay_states=0.5, weight_decay_words=0.0)
    assert found[0.5] == ["state.table"] and found[0.0] == ["words"]
    assert set(found[0.1]) == set(names.values()) - {"state.table", "words"}
    assert set(groups(weight_decay_networks=0.2)) == {0.0, 0.2}
    scalar = params.build("scalar", ScalarOptions(), BLOCKED, 0)
    with pytest.raises(ValueError, match="have no embeddings"):
        decay_groups(scalar, TrainingSettings(weight_decay_states=0.1))


@pytest.mark.parametrize("rows", ["all", "touched"])
def test_decay_is_taken_from_its_role_alone(rows):
    """With a gradient of zero; of rows that had none, nothing is taken where rows are touched."""
    module = build()
    settings = TrainingSettings(rows=rows, lr=0.1, weight_decay_states=0.5)
    optimizer = make_optimizer(module, settings)
    before = {name: p.detach().clone() for name, p in module.named_parameters()}
    for parameter in module.parameters():
        parameter.grad = torch.zeros_like(parameter)
    module.state.table.grad[:4] = 1e-30
    optimizer.step()
    for name, parameter in module.named_parameters():
        if name != "state.table":
            assert torch.equal(parameter, before[name]), name
    table, was = module.state.table.detach(), before["state.table"]
    touched = slice(0, 4) if rows == "touched" else slice(0, 12)
    torch.testing.assert_close(table[touched], was[touched] * (1 - 0.1 * 0.5))
    assert torch.equal(table[4:], was[4:]) == (rows == "touched")


OPTIONS = {
    "embedding_dropout": {"embedding_dropout": 0.2},
    "vector_dropout": {"vector_dropout": 0.2, "dropout_masks": "shared"},
    "word_dropout": {"word_dropout": 0.2},
    "hidden_words": {"hidden_words": 0.3},
    "decays": {"weight_decay_states": 0.1, "weight_decay_words": 0.2},
    "convention": {"convention": "carry", "batches": "rotated"},
    "averaging": {"averaging": 0.9},
}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("regularisation") / "text.txt"
    path.write_text("\n".join(f"w{i % 7} w{i % 5} w{i % 3}" for i in range(120)))
    return path


def recipe(text, model=None, **training):
    return from_dict(
        {
            "corpus": {"data": str(text)},
            "model": {"states": 16, "blocks": 4} | (model or {}),
            "options": {} if model else {"width": 8, "start": "direct"},
            "training": {
                **{"epochs": 1, "batch": 4, "window": 8, "checks_per_epoch": 2},
                **{"state_dropout": 0.5, "rows": "touched"},
                **training,
            },
        },
        "here",
    )


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_runs_resume_bitwise_and_their_models_are_normalised(text, tmp_path, options):
    asked = recipe(text, **options)
    whole = train_run(tmp_path / "whole", asked)
    stops = iter([False] * 4 + [True])
    with pytest.raises(Stopped):
        train_run(tmp_path / "parts", asked, should_stop=lambda: next(stops))
    parts = train_run(tmp_path / "parts", asked, resume=True)
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert parts["valid"] == whole["valid"] and parts["test"] == whole["test"]
    assert losses(tmp_path / "whole") != [] and logged(tmp_path / "whole", "check")
    lm = open_model(tmp_path / "parts")
    total = lm.predictor().next_token(torch.tensor([[1, 2]])).double().exp().sum()
    assert float(total) == pytest.approx(1.0, abs=1e-5)


def test_a_model_keeps_the_convention_that_it_was_trained_with(text, tmp_path):
    result = train_run(tmp_path / "run", recipe(text, **OPTIONS["convention"]))
    assert result["valid"]["convention"] == result["test"]["convention"] == "carry"
    assert logged(tmp_path / "run", "check")[0]["convention"] == "carry"
    lm, corpus = open_model(tmp_path / "run"), prepare(text)
    assert lm.convention == "carry" and not lm.hmm().reset
    assert lm.perplexity(corpus).perplexity == pytest.approx(result["test"]["perplexity"])
    assert lm.perplexity(corpus, convention="reset").log_prob != lm.perplexity(corpus).log_prob
    lm.save_pretrained(tmp_path / "copy")
    assert open_model(tmp_path / "copy").convention == "carry"


WRONG = [
    ({"vector_dropout": 1.0}, {}, r"vector_dropout must be from 0 to below 1"),
    ({"hidden_words": -0.1}, {}, r"hidden_words must be from 0 to below 1"),
    ({"weight_decay_words": -1.0}, {}, "weight_decay_words must be finite and not below 0"),
    ({"weight_decay": float("nan")}, {}, "weight_decay must be finite"),
    ({"word_dropout": 0.1}, {"family": "lstm"}, "word_dropout is for an HMM that AdamW trains"),
    ({"convention": "carry"}, {"family": "lstm"}, "convention = carry is for an HMM"),
    ({"vector_dropout": 0.1}, {"parameterisation": "scalar"}, "is for models with embeddings"),
    ({"weight_decay_states": 0.1}, {"parameterisation": "scalar"}, "is for models with embed"),
    ({"hidden_words": 0.1}, {"support": "dense"}, "support must be blocked"),
]


@pytest.mark.parametrize("training, model, message", WRONG)
def test_what_cannot_be(text, training, model, message):
    with pytest.raises(ValueError, match=message):
        recipe(text, {"states": 16} | model, **{"rows": "all"} | training)
