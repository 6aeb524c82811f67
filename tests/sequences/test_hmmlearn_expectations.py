"""What hmmlearn promises of its categorical model, asked of ours through a thin adapter.

Its choice between two implementations has no meaning here. Whole numbers as floats are refused
there and read here, since NaN marks what is missing.
"""

import numpy as np
import pytest

from bighmm.sequences import SequenceHMM

RAINY, SUNNY = 0, 1
WALK, SHOP, CLEAN = 0, 1, 2
WEATHER = {
    "startprob_": np.array([0.6, 0.4]),
    "transmat_": np.array([[0.7, 0.3], [0.4, 0.6]]),
    "emissionprob_": np.array([[0.1, 0.4, 0.5], [0.6, 0.3, 0.1]]),
}


NAMES = {"n_components": "n_states", "n_features": "n_symbols", "n_iter": "iterations"}


class Adapter:
    """Calls as hmmlearn's `CategoricalHMM` has them, answered by a `SequenceHMM`."""

    def __init__(self, n_components, **settings):
        given = {"n_components": n_components, "init_params": "ste", "n_iter": 10, "tol": 1e-2}
        given |= settings
        self.model = SequenceHMM(**{NAMES.get(k, k): v for k, v in given.items()})

    def __getattr__(self, name):
        if name == "n_features":
            return self.model.n_symbols_
        return getattr(self.model, name)

    def set(self, **tables):
        for name, table in tables.items():
            setattr(self.model, name, table)
        return self

    def fit(self, X, lengths=None):
        self.model.fit(X, lengths=lengths)
        return self

    def score(self, X, lengths=None):
        return self.model.score(X, lengths=lengths)

    def sample(self, n_samples=1, random_state=None):
        X, states = self.model.sample(1, n_samples, None, random_state, return_states=True)
        return X.reshape(-1, 1), states[0]


@pytest.fixture
def weather():
    return Adapter(2).set(**WEATHER)


def random_tables(draw):
    return {
        name: draw.dirichlet(np.ones(table.shape[-1]), table.shape[:-1] or None)
        for name, table in WEATHER.items()
    }


def never_falls(model, X, lengths, n_iter):
    """Fit one iteration at a time, each from where the last one ended."""
    model.model.set_params(iterations=1, tol=0.0)
    model.fit(X, lengths)
    model.model.set_params(init_params="")
    scores = [model.score(X, lengths)]
    for _ in range(n_iter - 1):
        model.fit(X, lengths)
        scores.append(model.score(X, lengths))
    assert (np.diff(scores) > -1e-9).all() and np.isfinite(scores).all()


class TestWeather:
    """The example of the encyclopedia: two kinds of weather, three things to do."""

    X = ([WALK], [SHOP], [CLEAN])

    def test_viterbi(self, weather):
        log_prob, states = weather.decode(self.X, algorithm="viterbi")
        assert np.exp(log_prob) == pytest.approx(0.01344, abs=5e-6)
        assert states.tolist() == [SUNNY, RAINY, RAINY]

    def test_map(self, weather):
        _, states = weather.decode(self.X, algorithm="map")
        assert states.tolist() == [SUNNY, RAINY, RAINY]

    def test_predict(self, weather):
        assert weather.predict(self.X).tolist() == [SUNNY, RAINY, RAINY]
        expected = [[0.23170303, 0.76829697], [0.62406281, 0.37593719], [0.86397706, 0.13602294]]
        np.testing.assert_allclose(weather.predict_proba(self.X), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("n_features, expected", [(None, 3), (5, 5)])
def test_the_number_of_symbols_is_found_or_kept(weather, n_features, expected):
    X, _ = weather.sample(500, random_state=0)
    model = Adapter(2, n_features=n_features, random_state=0)
    never_falls(model, X, [500], 10)
    assert model.n_features == expected


@pytest.mark.parametrize("wrong", [[], np.zeros((0, 3))])
def test_tables_of_another_shape(weather, wrong):
    with pytest.raises(ValueError, match="emissionprob_ must have the shape"):
        weather.set(emissionprob_=wrong)


def test_score_samples(weather):
    X = np.random.default_rng(0).integers(0, 3, (20, 1))
    log_prob, posteriors = weather.score_samples(X)
    assert log_prob == pytest.approx(weather.score(X))
    assert posteriors.shape == (20, 2) and np.allclose(posteriors.sum(1), 1)


def test_sample(weather):
    X, states = weather.sample(1000, random_state=0)
    assert X.ndim == 2 and len(X) == len(states) == 1000
    assert len(np.unique(X)) == 3 and len(np.unique(states)) == 2


@pytest.mark.parametrize("params", ["ste", "e"])
def test_fit_from_tables_that_were_set(weather, params):
    X, _ = weather.sample(100, random_state=1)
    draw = np.random.default_rng(2)
    model = Adapter(2, params=params, init_params="").set(**random_tables(draw))
    before = model.transmat_
    never_falls(model, X, [10] * 10, 5)
    assert np.allclose(model.transmat_, before) == ("t" not in params)


def test_fit_from_a_random_beginning(weather):
    X, _ = weather.sample(100, random_state=1)
    never_falls(Adapter(2, init_params="ste", random_state=3), X, [10] * 10, 5)


@pytest.mark.parametrize(
    "X", [np.array([[0, 0, 2, 1, 2, 1, 1]]).T, np.array([[0, 0, 1, 2, 1]], np.uint8)]
)
def test_whole_numbers_are_symbols(weather, X):
    assert np.isfinite(weather.score(X))


@pytest.mark.parametrize("X", [np.array([[0.0, 2.5, 1.0]]), np.array([[0, -2, 1, 3, 1, 1]])])
def test_fractions_and_negative_numbers_are_none(weather, X):
    with pytest.raises(ValueError, match="sequence 0"):
        weather.score(X)


@pytest.mark.parametrize("lengths", [[10] * 10, [100]])
def test_the_same_numbers_as_hmmlearn(weather, lengths):
    hmm = pytest.importorskip("hmmlearn.hmm")
    X, _ = weather.sample(100, random_state=4)
    draw = np.random.default_rng(5)
    tables = random_tables(draw)
    priors = {"startprob_prior": 1.5, "transmat_prior": 2.0, "emissionprob_prior": 1.1}
    theirs = hmm.CategoricalHMM(2, n_iter=7, tol=-np.inf, init_params="", **priors)
    for name, table in tables.items():
        setattr(theirs, name, table)
    theirs.fit(X, lengths)
    ours = Adapter(2, n_iter=7, tol=0.0, init_params="", **priors).set(**tables).fit(X, lengths)
    for name in WEATHER:
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), atol=1e-9)
    assert ours.score(X, lengths) == pytest.approx(theirs.score(X, lengths))
    assert ours.aic(X, lengths) == pytest.approx(theirs.aic(X, lengths))
    assert ours.bic(X, lengths) == pytest.approx(theirs.bic(X, lengths))
    assert ours.decode(X, lengths)[0] == pytest.approx(theirs.decode(X, lengths)[0])
    assert ours.predict(X, lengths).tolist() == theirs.predict(X, lengths).tolist()
    log_prob, posteriors = theirs.score_samples(X, lengths)
    found = ours.score_samples(X, lengths)
    assert found[0] == pytest.approx(log_prob) and np.allclose(found[1], posteriors)
    expected = theirs.get_stationary_distribution()
    assert np.allclose(ours.get_stationary_distribution(), expected)
