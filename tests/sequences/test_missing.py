"""Symbols that are missing, against the sum over all that they may be; symbols never seen."""

from itertools import pairwise, product

import numpy as np
import pytest
import torch

from bighmm.sequences import SequenceHMM
from bighmm.train.expectation_maximisation import improved
from models import random_hmm

KINDS = ["dense-table", "blocked-flat", "per_token-flat"]
ROWS = [[0, -1, 2, 1, -1], [-1, 3], [1, 2, 0]]


def model_of(kind):
    return SequenceHMM.from_hmm(random_hmm(kind, states=4, vocabulary=4, seed=3, end=None))


def fillings(row):
    """All rows without gaps that this one may be."""
    gaps = [place for place, symbol in enumerate(row) if symbol == -1]
    for symbols in product(range(4), repeat=len(gaps)):
        filled = list(row)
        for place, symbol in zip(gaps, symbols, strict=True):
            filled[place] = symbol
        yield filled


def by_enumeration(model, row):
    """log p(what is known), and p(state | what is known) (T, Z)."""
    rows = [*fillings(row)]
    weights = np.exp(model.score_sequences(rows))
    shares = weights / weights.sum()
    return np.log(weights.sum()), np.einsum("n,ntz->tz", shares, model.predict_proba(rows))


@pytest.mark.parametrize("kind", KINDS)
def test_every_question_sums_over_what_is_missing(kind):
    model = model_of(kind)
    scores, (total, proba) = model.score_sequences(ROWS), model.score_samples(ROWS)
    assert total == pytest.approx(scores.sum()) == pytest.approx(model.score(ROWS))
    for row, score, marginals in zip(ROWS, scores, proba, strict=True):
        expected, posterior = by_enumeration(model, row)
        assert score == pytest.approx(expected) and np.allclose(marginals, posterior)
    after = model.next_proba(ROWS)
    assert np.allclose(after.sum(1), 1)
    for row, found in zip(ROWS, after, strict=True):
        longer = [by_enumeration(model, [*row, symbol])[0] for symbol in range(4)]
        assert np.allclose(found, np.exp(np.array(longer) - by_enumeration(model, row)[0]))
    log_prob, paths = model.decode(ROWS)
    assert log_prob == pytest.approx(sum(map(best_joint, [model] * len(ROWS), ROWS)))
    for row, path in zip(ROWS, paths, strict=True):
        assert joint(model, row, path) == pytest.approx(best_joint(model, row))


def best_joint(model, row):
    return max(joint(model, row, path) for path in product(range(4), repeat=len(row)))


def joint(model, row, path):
    """log p(what is known, path)."""
    start, moves, words = model.startprob_, model.transmat_, model.emissionprob_
    prob = start[path[0]] * np.prod([moves[a, b] for a, b in pairwise(path)])
    prob *= np.prod([words[z, x] for z, x in zip(path, row, strict=True) if x != -1])
    return np.log(prob) if prob > 0 else -np.inf


@pytest.mark.parametrize("kind", KINDS)
def test_an_iteration_sums_over_what_is_missing(kind):
    start = random_hmm(kind, states=4, vocabulary=4, seed=3, end=None)
    fitted = SequenceHMM(4, 4, initial=start, iterations=1, tolerance=0).fit(ROWS)
    model = SequenceHMM.from_hmm(start)
    sums = None
    for row in ROWS:
        rows = [*fillings(row)]
        weights = np.exp(model.score_sequences(rows) - by_enumeration(model, row)[0])
        for filled, weight in zip(rows, weights, strict=True):
            counts = start.expected_counts([filled])
            gaps = torch.tensor([place for place, symbol in enumerate(row) if symbol == -1])
            emission = counts.emission.clone()
            posterior = start.posterior([filled]).marginals[0]
            for place in gaps.tolist():
                emission[filled[place]] -= posterior[place]
            parts = [weight * part for part in (counts.start, counts.transition, emission)]
            sums = parts if sums is None else [a + b for a, b in zip(sums, parts, strict=True)]
    expected = improved(start, counts._replace(start=sums[0], transition=sums[1], emission=sums[2]))
    for found, table in zip(fitted.hmm_.tables(), type(start).of(expected).tables(), strict=True):
        torch.testing.assert_close(found, table, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(
    "settings",
    [
        {"n_states": 3},
        {"n_states": 4, "support": "blocked", "n_blocks": 2},
        {"n_states": 3, "optimizer": "adamw", "lr": 0.1},
        {
            **{"n_states": 4, "optimizer": "adamw", "parameterisation": "neural"},
            **{"options": {"width": 4}, "support": "blocked", "n_blocks": 2},
        },
    ],
)
def test_fitting(settings):
    draw = np.random.default_rng(0)
    whole = [np.tile([0, 1, 2, 3], 5) for _ in range(6)]
    rows = [np.where(draw.random(20) < 0.3, np.nan, row) for row in whole]
    model = SequenceHMM(iterations=15, tolerance=0, random_state=0, **settings).fit(rows)
    assert model.history_[-1] == pytest.approx(model.score(rows)) and model.n_symbols_ == 4
    assert model.history_[-1] > model.history_[0]
    if "optimizer" not in settings:
        assert (np.diff(model.history_) > -1e-9).all()


def test_all_missing():
    model = model_of("dense-table")
    assert model.score([[None, None]]) == pytest.approx(0)
    with pytest.raises(ValueError, match="the sequences hold no symbols"):
        SequenceHMM(2).fit([[None, -1]])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("prefix", [[0, None], [None], [2, None, 1]])
def test_samples_after_a_prefix_with_gaps(kind, prefix):
    model = model_of(kind)
    drawn, states = model.sample(4_000, 2, prefix, random_state=0, return_states=True)
    found = np.bincount(drawn[:, 0], minlength=4) / len(drawn)
    assert np.allclose(found, model.next_proba([prefix])[0], atol=0.04)
    expected = model.predict_proba([[*prefix, None]])[0][-1]
    assert np.allclose(np.bincount(states[:, 0], minlength=4) / len(states), expected, atol=0.04)
    assert (model.emissionprob_[states, drawn] > 0).all()
    again = model.sample(4_000, 2, prefix, random_state=0)
    assert again.shape == (4_000, 2)


def test_nothing_follows_a_prefix_that_is_impossible():
    model = SequenceHMM.from_tables([1, 0], np.eye(2), [[1, 0], [0, 1]])
    with pytest.raises(ValueError, match="the prefix has probability zero"):
        model.sample(prefix=[None, 1])


def test_models_that_are_too_large(monkeypatch):
    model = model_of("blocked-flat")
    monkeypatch.setattr("bighmm.ops.memory.ANSWER", 8)
    assert np.isfinite(model.score([[0, 1]]))
    with pytest.raises(ValueError, match="a table of 4 states would have 16 numbers"):
        model.score([[0, None]])


class TestUnseen:
    ROWS = ([0, 1, 0, 1, 1, 0], [1, 1, 0, 2])

    def fitted(self, **settings):
        settings = {"iterations": 3, "tolerance": 0, "random_state": 0, **settings}
        return SequenceHMM(2, **settings).fit(self.ROWS)

    def test_refused_unless_asked_for(self):
        with pytest.raises(ValueError, match=r"symbol 7 .* set unseen='smooth'"):
            self.fitted().score([[0, 7]])
        with pytest.raises(ValueError, match="unseen must be 'error' or 'smooth', not 'maybe'"):
            self.fitted(unseen="maybe")

    @pytest.mark.parametrize("n_symbols", [None, 5])
    def test_smoothed(self, n_symbols):
        plain = self.fitted(n_symbols=n_symbols)
        model = self.fitted(unseen="smooth", n_symbols=n_symbols)
        share = 3 / (10 + 3)  # a symbol was new three times in ten
        for unseen in (3, 99):
            assert model.score([[0, unseen]]) == pytest.approx(
                plain.score([[0]]) + np.log1p(-share) + np.log(share)
            )
        assert model.score([[0, 2]]) == pytest.approx(plain.score([[0, 2]]) + 2 * np.log1p(-share))
        assert np.allclose(
            model.predict_proba([[0, 3, 1]])[0], plain.predict_proba([[0, -1, 1]])[0]
        )
        assert np.allclose(model.next_proba([[0, 3]]), plain.next_proba([[0, -1]]))
        assert model.predict([[0, 3]])[0].shape == (2,)

    def test_samples(self):
        rows = [["a", "b", "a", "a"]]
        model = SequenceHMM(2, unseen="smooth", random_state=0, tol=1e9).fit(rows)
        plain = SequenceHMM(2, random_state=0, tol=1e9).fit(rows)
        for known in (["a"], ["a", "b"]):
            drawn = model.sample(1, 9, known, random_state=1)
            assert (drawn == plain.sample(1, 9, known, random_state=1)).all()
        drawn = model.sample(1, 9, ["a", "what"], random_state=1)
        assert (drawn == plain.sample(1, 9, ["a", None], random_state=1)).all()

    def test_fitting_still_refuses_what_is_outside(self):
        with pytest.raises(ValueError, match=r"symbol 2 in sequence 1 .*before fitting$"):
            self.fitted(unseen="smooth", n_symbols=2)

    def test_saved(self, tmp_path):
        model = self.fitted(unseen="smooth")
        model.save(tmp_path / "model")
        assert SequenceHMM.load(tmp_path / "model").score([[0, 9]]) == model.score([[0, 9]])
