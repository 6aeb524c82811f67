"""Tables that are given, kept, or fitted with a prior; restarts, convergence, criteria."""

import numpy as np
import pytest
import torch

from bighmm.hmm import HMM
from bighmm.sequences import ConvergenceWarning, NotFittedError, SequenceHMM
from models import random_hmm

START, MOVES = [0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]]
WORDS = [[0.1, 0.4, 0.5], [0.6, 0.3, 0.1]]
TABLES = {"s": "startprob_", "t": "transmat_", "e": "emissionprob_"}
ROWS = [np.random.default_rng(seed).integers(0, 3, 12) for seed in range(5)]


def fixed(**settings):
    return SequenceHMM(2, 3, iterations=4, tolerance=0, random_state=0, **settings)


def tables(model):
    return {letter: getattr(model, name) for letter, name in TABLES.items()}


def test_from_tables_and_from_hmm():
    model = SequenceHMM.from_tables(START, MOVES, WORDS, symbols=["a", "b", "c"])
    assert np.allclose(model.startprob_, START) and np.allclose(model.transmat_, MOVES)
    assert np.allclose(model.emissionprob_, WORDS) and model.symbols_ == ["a", "b", "c"]
    assert model.n_states == 2 and model.n_iter_ == 0 and not model.converged_
    hmm = HMM.from_probs(*(torch.tensor(t, dtype=torch.float64) for t in (START, MOVES, WORDS)))
    again = SequenceHMM.from_hmm(hmm, verbose=True)
    assert again.verbose and again.score([[0, 2]]) == pytest.approx(model.score([["a", "c"]]))
    with pytest.raises(ValueError, match="has no end mark; give an HMM whose end is None"):
        SequenceHMM.from_hmm(random_hmm("dense-table"))
    with pytest.raises(ValueError, match="the HMM has 3 tokens, not 2 symbols"):
        SequenceHMM.from_hmm(hmm, symbols=["a", "b"])
    for wrong in (["a", "a", "b"], [1, 2, 3]):
        with pytest.raises(ValueError, match="symbols must be strings of which no two"):
            SequenceHMM.from_tables(START, MOVES, WORDS, symbols=wrong)
    lazy = SequenceHMM.from_tables(START, MOVES, WORDS, symbols=(name for name in "abc"))
    assert lazy.symbols == ["a", "b", "c"] == lazy.fit(["a", "b"]).symbols_
    with pytest.raises(ValueError, match="row 0 of emission sums to"):
        SequenceHMM.from_tables(START, MOVES, [[0.5, 0.1], [0.5, 0.5]])


def test_tables_that_are_set_one_by_one():
    model = SequenceHMM(2)
    assert not hasattr(model, "startprob_")
    model.startprob_ = START
    assert np.allclose(model.startprob_, START)
    model.transmat_ = MOVES
    with pytest.raises(NotFittedError):
        model.score([[0]])
    model.emissionprob_ = WORDS
    whole = SequenceHMM.from_tables(START, MOVES, WORDS)
    assert model.score(ROWS) == pytest.approx(whole.score(ROWS)) and model.n_symbols_ == 3
    model.startprob_ = [0.0, 1.0]
    assert model.score([[2]]) == pytest.approx(np.log(0.1))
    named = SequenceHMM.from_tables(START, MOVES, WORDS, symbols=["a", "b", "c"])
    named.transmat_ = np.eye(2)
    assert named.symbols_ == ["a", "b", "c"]


@pytest.mark.parametrize(
    "name, value, sentence",
    [
        ("startprob_", [0.5, 0.2, 0.3], r"startprob_ must have the shape \(2,\), not \(3,\)"),
        ("transmat_", [0.5, 0.5], r"transmat_ must have the shape \(2, 2\), not \(2,\)"),
        ("emissionprob_", [], r"emissionprob_ must have the shape \(2, symbols\), not \(0,\)"),
        ("emissionprob_", np.zeros((0, 3)), r"must have the shape \(2, symbols\), not \(0, 3\)"),
        ("emissionprob_", np.zeros((2, 3)), "must be probabilities that add up to one"),
        ("startprob_", [1.5, -0.5], "must be probabilities that add up to one"),
        ("startprob_", [np.nan, 1.0], "must be probabilities that add up to one"),
        ("startprob_", "half", "startprob_ must be a table of numbers"),
        ("transmat_", [[1.0], [0.5, 0.5]], "transmat_ must be a table of numbers"),
    ],
)
@pytest.mark.parametrize("fitted", [False, True])
def test_tables_that_are_none(name, value, sentence, fitted):
    model = SequenceHMM.from_tables(START, MOVES, WORDS) if fitted else SequenceHMM(2)
    with pytest.raises(ValueError, match=sentence):
        setattr(model, name, value)


def test_tables_that_are_set_have_the_symbols_of_the_settings():
    model = SequenceHMM(2, symbols=["walk", "shop", "clean"])
    model.startprob_, model.transmat_, model.emissionprob_ = START, MOVES, WORDS
    assert model.symbols_ == ["walk", "shop", "clean"]
    assert model.predict(["walk", "shop"]).shape == (2,)
    message = "emissionprob_ must have a column for each of the 5 symbols, not 3 columns"
    with pytest.raises(ValueError, match=message):
        SequenceHMM(2, 5).emissionprob_ = WORDS
    late = SequenceHMM(2)
    late.emissionprob_, late.startprob_ = WORDS, START
    late.n_symbols = 5
    with pytest.raises(ValueError, match=message):
        late.transmat_ = MOVES


def test_emissions_of_another_size_on_a_fitted_model():
    two = [[0.5, 0.5], [0.1, 0.9]]
    with pytest.raises(ValueError, match="a column for each of the 3 symbols, not 2 columns"):
        SequenceHMM.from_tables(START, MOVES, WORDS).emissionprob_ = two
    strings = SequenceHMM(2, tol=1e9, random_state=0).fit(["a", "b", "c"])
    with pytest.raises(ValueError, match="a column for each of the 3 symbols, not 2 columns"):
        strings.emissionprob_ = two
    numbers = SequenceHMM(2, tol=1e9, random_state=0).fit([0, 1, 2])
    numbers.emissionprob_ = two
    assert numbers.n_symbols_ == 2 and numbers.sample(1, 50).max() == 1


class TestEmissionsThatAreKept:
    """They say how many symbols there are, whatever the sequences have."""

    def kept(self, drawn, **settings):
        settings = {"iterations": 2, "tol": 0, "random_state": 0, **settings}
        model = SequenceHMM(3, init_params=drawn, params="st", **settings)
        tables = {"s": np.full(3, 1 / 3), "t": np.full((3, 3), 1 / 3), "e": np.full((3, 4), 0.25)}
        for letter, name in TABLES.items():
            if letter not in drawn:
                setattr(model, name, tables[letter])
        return model

    @pytest.mark.parametrize("drawn", ["", "s", "t", "st"])
    @pytest.mark.parametrize("step", ["fit", "partial_fit"])
    def test_fewer_in_the_sequences(self, drawn, step, tmp_path):
        model = getattr(self.kept(drawn), step)([0, 1, 0])
        assert model.n_symbols_ == 4 and model.emissionprob_.shape == (3, 4)
        assert model.sample(1, 99, random_state=0).max() == 3
        assert np.isfinite(model.score([0, 3]))
        model.save(tmp_path / "model")
        assert SequenceHMM.load(tmp_path / "model").score([0, 3]) == model.score([0, 3])

    @pytest.mark.parametrize("drawn", ["", "s", "t", "st"])
    @pytest.mark.parametrize("symbol", [5, 100_000, 10**8])
    @pytest.mark.parametrize("step", ["fit", "partial_fit"])
    def test_more_in_the_sequences(self, drawn, symbol, step):
        with pytest.raises(ValueError, match=f"symbol {symbol} .* symbols go from 0 to 3"):
            getattr(self.kept(drawn), step)([0, 1, symbol])

    def test_another_number_in_the_settings(self):
        model = self.kept("st").set_params(n_symbols=6)
        with pytest.raises(ValueError, match=r"emissionprob_ was set to a table of shape \(3, 4\)"):
            model.fit([0, 1, 5])
        model = self.kept("").set_params(n_symbols=2)
        with pytest.raises(ValueError, match="model to begin with has 3 states and 4 symbols"):
            model.fit([0, 1])
        model = self.kept("te").set_params(n_states=2)
        with pytest.raises(ValueError, match=r"startprob_ was set to a table of shape \(3,\)"):
            model.fit([0, 1])

    def test_of_an_initial_model(self):
        start = random_hmm("dense-table", states=2, vocabulary=5, end=None)
        model = SequenceHMM(2, initial=start, iterations=1, tol=0).fit([0, 1])
        assert model.n_symbols_ == 5 and model.emissionprob_.shape == (2, 5)

    def test_of_strings(self):
        model = SequenceHMM(2, tol=1e9, random_state=0).fit(["a", "b", "c"])
        before = model.emissionprob_
        model.set_params(init_params="st", params="st").fit(["b", "c", "b"])
        assert model.symbols_ == ["a", "b", "c"] and np.allclose(model.emissionprob_, before)
        with pytest.raises(ValueError, match="symbol d in sequence 0 at position 1 is not known"):
            model.fit(["b", "d", "c"])


@pytest.mark.parametrize("params", ["", "s", "t", "e", "st", "ste"])
@pytest.mark.parametrize("kind", ["dense-table", "blocked-flat"])
def test_only_some_tables_are_fitted(params, kind):
    start = random_hmm(kind, states=2, vocabulary=3, seed=1, end=None)
    before = tables(SequenceHMM.from_hmm(start))
    model = fixed(initial=start, params=params).fit(ROWS)
    for letter, table in tables(model).items():
        same = np.allclose(table, before[letter], rtol=0, atol=1e-12)
        assert same == (letter not in params or (kind != "dense-table" and same))
    assert (np.diff(model.history_) >= -1e-9).all()


@pytest.mark.parametrize("drawn", ["", "s", "te", "ste"])
@pytest.mark.parametrize("source", ["initial", "set", "fitted", "blocked"])
def test_only_some_tables_begin_at_random(drawn, source):
    kind = "blocked-flat" if source == "blocked" else "dense-table"
    start = random_hmm(kind, states=2, vocabulary=3, seed=1, end=None)
    before = tables(SequenceHMM.from_hmm(start))
    model = fixed(init_params=drawn, params="")
    if source == "set":
        for letter, name in TABLES.items():
            if letter not in drawn:
                setattr(model, name, before[letter])
    elif source == "fitted":
        model = SequenceHMM.from_hmm(start).set_params(**model.get_params())
    else:
        model.initial = start
    model.fit(ROWS)
    for letter, table in tables(model).items():
        assert np.allclose(table, before[letter]) == (letter not in drawn) or source == "blocked"
        assert np.allclose(table.sum(-1), 1)


def test_a_table_that_is_kept_must_be_there():
    model = fixed(init_params="e")
    model.startprob_ = START
    with pytest.raises(ValueError, match="init_params='e' keeps transmat, so set transmat_ before"):
        model.fit(ROWS)
    model = SequenceHMM(2, 3, init_params="st", support="blocked", n_blocks=2)
    model.emissionprob_ = WORDS
    with pytest.raises(ValueError, match="emissionprob_ is for support='dense'"):
        model.fit(ROWS)
    for name in ("params", "init_params"):
        with pytest.raises(ValueError, match=f"{name} must be of the letters s"):
            SequenceHMM(2, **{name: "xyz"}).fit(ROWS)


class TestPriors:
    NAMES = ("startprob_prior", "transmat_prior", "emissionprob_prior")

    def one_step(self, **settings):
        start = SequenceHMM.from_tables(START, MOVES, WORDS).hmm_
        model = SequenceHMM(2, 3, initial=start, iterations=1, tolerance=0, **settings)
        return start, model.fit(ROWS)

    def test_numbers_and_tables(self):
        moves, words = np.array([[1.0, 3.0], [2.0, 1.5]]), np.arange(1.0, 7.0).reshape(2, 3)
        start, model = self.one_step(
            startprob_prior=2.0, transmat_prior=moves, emissionprob_prior=words
        )
        counts = start.expected_counts(ROWS)
        for found, counted, prior in (
            (model.startprob_, counts.start, np.full(2, 2.0)),
            (model.transmat_, counts.transition, moves),
            (model.emissionprob_, counts.emission.T, words),
        ):
            expected = counted.numpy() + prior - 1
            assert np.allclose(found, expected / expected.sum(-1, keepdims=True))

    def test_smoothing_is_a_prior_of_all(self):
        smooth = self.one_step(smoothing=0.5)[1]
        prior = self.one_step(**{name: 1.5 for name in self.NAMES})[1]
        for letter, table in tables(smooth).items():
            assert np.allclose(table, tables(prior)[letter])
        mixed = self.one_step(smoothing=0.5, emissionprob_prior=1.0)[1]
        plain = self.one_step()[1]
        assert np.allclose(mixed.transmat_, smooth.transmat_)
        assert np.allclose(mixed.emissionprob_, plain.emissionprob_)

    def test_sparse(self):
        """Below 1 it takes away: what is expected less often than that is not possible."""
        model = self.one_step(emissionprob_prior=0.01)[1]
        assert np.allclose(model.emissionprob_.sum(1), 1) and np.isfinite(model.score(ROWS))

    def test_blocks(self):
        start = random_hmm("blocked-flat", states=2, vocabulary=3, seed=1, end=None)
        words = np.arange(1.0, 7.0).reshape(2, 3)
        model = fixed(initial=start, emissionprob_prior=words).fit(ROWS)
        assert np.allclose(model.emissionprob_.sum(1), 1)

    @pytest.mark.parametrize("name", NAMES)
    def test_mistakes(self, name):
        for wrong, sentence in (
            (0.0, "must have finite numbers above 0"),
            (np.ones(7), "must be a number or an array of shape"),
            ("much", "must be a number or an array of shape"),
        ):
            with pytest.raises(ValueError, match=f"{name} {sentence}"):
                fixed(**{name: wrong}).fit(ROWS)
        with pytest.raises(ValueError, match=f"{name} is for optimizer='baum-welch'"):
            fixed(**{name: 2.0}, optimizer="adamw").fit(ROWS)

    def test_saved(self, tmp_path):
        model = fixed(transmat_prior=np.full((2, 2), 2.0)).fit(ROWS)
        model.save(tmp_path / "model")
        assert SequenceHMM.load(tmp_path / "model").transmat_prior == [[2.0, 2.0], [2.0, 2.0]]


class TestConvergence:
    def test_it_warns_while_it_still_improves(self):
        with pytest.warns(ConvergenceWarning, match="still rose by .* use more iterations"):
            model = SequenceHMM(2, iterations=2, random_state=0).fit(ROWS)
        assert not model.converged_ and model.n_iter_ == 2

    @pytest.mark.parametrize("limit", [{"tol": 0.5}, {"tolerance": 0.01}])
    def test_it_ends_when_it_gains_little(self, limit, recwarn):
        model = SequenceHMM(2, random_state=0, **limit).fit(ROWS)
        gains = np.diff(model.history_)
        least = limit.get("tol", 0.01 * 60)
        assert model.converged_ and gains[-1] < least and (gains[:-1] >= least).all()
        assert model.n_iter_ == len(gains) < 100 and not recwarn.list

    def test_all_iterations_may_be_asked_for(self, recwarn):
        for limit in ({"tolerance": 0}, {"tol": 0.0}):
            assert SequenceHMM(2, iterations=3, random_state=0, **limit).fit(ROWS).n_iter_ == 3
        assert not recwarn.list

    def test_saved(self, tmp_path):
        model = SequenceHMM(2, tol=0.5, random_state=0).fit(ROWS)
        model.save(tmp_path / "model")
        loaded = SequenceHMM.load(tmp_path / "model")
        assert loaded.converged_ and loaded.n_iter_ == model.n_iter_
        assert loaded.init_scores_ == model.init_scores_

    def test_adamw(self):
        settings = {"optimizer": "adamw", "lr": 0.1, "random_state": 0}
        model = SequenceHMM(2, tol=5.0, **settings).fit(ROWS)
        assert model.converged_ and model.n_iter_ < 100
        with pytest.warns(ConvergenceWarning):
            SequenceHMM(2, iterations=2, **settings).fit(ROWS)

    def test_progress(self, capsys):
        SequenceHMM(2, iterations=2, tolerance=0, n_init=2, random_state=0, verbose=True).fit(ROWS)
        said = capsys.readouterr().err.splitlines()
        assert len(said) == 6 and said[0].startswith("beginning 1, iteration 0: log p -")
        assert "gain" in said[1] and said[-1].startswith("beginning 2, iteration 2")
        SequenceHMM(2, iterations=2, tolerance=0, random_state=0).fit(ROWS)
        assert capsys.readouterr().err == ""


def test_the_best_beginning_is_kept():
    model = fixed(n_init=4).fit(ROWS)
    assert len({*model.init_scores_}) == 4 and model.history_[-1] == max(model.init_scores_)
    seeds = [fixed().set_params(random_state=seed).fit(ROWS).history_[-1] for seed in range(4)]
    assert model.init_scores_ == seeds
    given = fixed(n_init=4, initial=SequenceHMM.from_tables(START, MOVES, WORDS).hmm_).fit(ROWS)
    assert len(given.init_scores_) == 1


class TestCriteria:
    def test_dense(self):
        model = SequenceHMM.from_tables(START, MOVES, WORDS)
        free, log_prob = 1 + 2 + 4, model.score(ROWS)
        assert model.aic(ROWS) == pytest.approx(2 * free - 2 * log_prob)
        assert model.bic(ROWS) == pytest.approx(free * np.log(60) - 2 * log_prob)
        assert model.set_params(params="e").aic(ROWS) == pytest.approx(8 - 2 * log_prob)
        joined = np.concatenate(ROWS)
        assert model.bic(joined, [12] * 5) == pytest.approx(model.bic(ROWS))

    def test_what_is_impossible_is_not_free(self):
        model = SequenceHMM.from_tables([1.0, 0.0], [[0.5, 0.5], [0.0, 1.0]], WORDS)
        free = 0 + 1 + 4
        assert model.aic([[1, 2]]) == pytest.approx(2 * free - 2 * model.score([[1, 2]]))

    def test_missing_symbols_are_no_observations(self):
        model = SequenceHMM.from_tables(START, MOVES, WORDS)
        expected = 7 * np.log(2) - 2 * model.score([[1, -1, 2]])
        assert model.bic([[1, -1, 2]]) == pytest.approx(expected)

    def test_blocks(self):
        hmm = random_hmm("blocked-flat", states=4, vocabulary=4, seed=1, end=None)
        model = SequenceHMM.from_hmm(hmm)
        cells = int((model.emissionprob_ > 0).sum())
        assert (model.aic(ROWS) + 2 * model.score(ROWS)) / 2 == pytest.approx(3 + 12 + cells - 4)


@pytest.mark.parametrize("solved", [512, 1])
@pytest.mark.parametrize(
    "moves, expected",
    [
        (MOVES, [4 / 7, 3 / 7]),
        ([[0.0, 1.0], [1.0, 0.0]], [0.5, 0.5]),  # which never settles by itself
        ([[0.5, 0.5], [0.0, 1.0]], [0.0, 1.0]),
    ],
)
def test_stationary_distribution(moves, expected, solved, monkeypatch):
    monkeypatch.setattr("bighmm.sequences.criteria.SOLVED", solved)
    model = SequenceHMM.from_tables(START, moves, WORDS)
    found = model.get_stationary_distribution()
    assert np.allclose(found, expected) and np.allclose(found @ model.transmat_, found)


class TestDecode:
    def test_without_a_name_it_is_viterbi(self):
        model = SequenceHMM.from_tables(START, MOVES, WORDS)
        found, expected = model.decode(ROWS, algorithm=None), model.decode(ROWS)
        assert found[0] == expected[0] and all(map(np.array_equal, found[1], expected[1]))

    MODEL = SequenceHMM.from_tables(START, MOVES, WORDS)

    def test_viterbi_and_map(self):
        total, states = self.MODEL.decode(ROWS)
        assert [s.tolist() for s in states] == [s.tolist() for s in self.MODEL.predict(ROWS)]
        joint = self.MODEL.hmm_.joint_log_prob(ROWS, [torch.from_numpy(s) for s in states])
        assert total == pytest.approx(float(joint.sum()))
        below, states = self.MODEL.decode(ROWS, algorithm="map")
        for found, proba in zip(states, self.MODEL.predict_proba(ROWS), strict=True):
            assert found.tolist() == proba.argmax(1).tolist()
        assert below <= total

    def test_paths_that_are_impossible(self):
        never = SequenceHMM.from_tables([1.0, 0.0], [[0.0, 1.0], [1.0, 0.0]], [[1, 0], [0, 1]])
        for algorithm in ("viterbi", "map"):
            total, states = never.decode([[0, 0], [0, 1]], algorithm=algorithm)
            assert total == -np.inf and [s.tolist() for s in states] == [[-1, -1], [0, 1]]
        with pytest.raises(ValueError, match="algorithm must be 'viterbi' or 'map', not 'best'"):
            never.decode([[0]], algorithm="best")

    def test_states_are_sampled_with_the_symbols(self):
        symbols, states = self.MODEL.sample(3, 4, [0], 1, return_states=True)
        assert symbols.shape == states.shape == (3, 4)
        assert symbols.tolist() == self.MODEL.sample(3, 4, [0], 1).tolist()
        clear = SequenceHMM.from_tables(START, MOVES, np.eye(2), symbols=["x", "y"])
        symbols, states = clear.sample(3, 4, random_state=0, return_states=True)
        assert (symbols == np.array(["x", "y"], dtype=object)[states]).all()


class TestPartialFit:
    def test_a_stream(self):
        moves, words = [[0.95, 0.05], [0.1, 0.9]], [[0.9, 0.1], [0.2, 0.8]]
        truth = SequenceHMM.from_tables([0.5, 0.5], moves, words)
        batches = [truth.sample(16, 25, random_state=seed) for seed in range(40)]
        held_out = truth.sample(40, 50, random_state=99)
        model = SequenceHMM(2, 2, random_state=1).partial_fit(batches[0])
        best, before = truth.score(held_out), model.score(held_out)
        for batch in batches * 3:
            model.partial_fit(batch)
        assert model.n_batches_ == 121
        assert model.score(held_out) > best - 0.1 * (best - before)

    def test_it_goes_on_from_what_is_fitted(self, tmp_path):
        model = fixed().fit(ROWS)
        before = model.score(ROWS)
        model.partial_fit(ROWS)
        assert model.n_batches_ == 1 and model.score(ROWS) > before
        model.save(tmp_path / "model")
        assert SequenceHMM.load(tmp_path / "model").n_batches_ == 1
        with pytest.raises(ValueError, match="symbol 3 in sequence 0"):
            model.partial_fit([[3]])

    def test_gaps_and_settings(self):
        model = fixed(params="e").partial_fit([[0, None, 2], [1]])
        moves = model.transmat_
        assert np.allclose(model.partial_fit([[None, None]]).partial_fit([[1, 2]]).transmat_, moves)
        with pytest.raises(ValueError, match="partial_fit is a step of Baum-Welch"):
            SequenceHMM(2, optimizer="adamw").partial_fit(ROWS)
