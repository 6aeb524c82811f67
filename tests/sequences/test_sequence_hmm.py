"""SequenceHMM: fitting, answers, input in every form, and its manners towards scikit-learn."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import bighmm
from bighmm.base.files import sha256_of, write_sealed
from bighmm.base.json_files import read_object
from bighmm.interop import from_hmmlearn, to_hmmlearn, to_numpy
from bighmm.sequences import NotFittedError, SequenceHMM
from bighmm.sequences.alphabet import Alphabet
from bighmm.sequences.reading import read
from bighmm.sequences.saving import CONFIG, FORMATS, WEIGHTS
from models import random_hmm

KINDS = {
    "dense": {"n_states": 3},
    "blocked": {"n_states": 4, "support": "blocked", "n_blocks": 2},
    "per-symbol": {"n_states": 4, "support": "per-symbol", "n_states_per_symbol": 2},
    "smoothed": {"n_states": 3, "smoothing": 0.1},
    "adamw": {"n_states": 3, "optimizer": "adamw", "iterations": 5, "lr": 0.1},
    "neural": {
        **{"n_states": 4, "parameterisation": "neural", "options": {"width": 4}, "iterations": 4},
        **{"optimizer": "adamw", "support": "blocked", "n_blocks": 2, "batch_size": 2},
    },
}


def draws(lengths, symbols=4, seed=0):
    generator = np.random.default_rng(seed)
    return [generator.integers(0, symbols, size) for size in lengths]


SEQUENCES = draws([9, 1, 0, 14, 6])
pytestmark = pytest.mark.filterwarnings("ignore::bighmm.sequences.ConvergenceWarning")


@pytest.fixture(scope="module", params=KINDS)
def model(request):
    settings = {"random_state": 1, "iterations": 20, **KINDS[request.param]}
    return SequenceHMM(**settings).fit(SEQUENCES)


def test_answers_are_those_of_the_hmm(model):
    scores = model.score_sequences(SEQUENCES)
    assert model.score(SEQUENCES) == pytest.approx(scores.sum()) and scores[2] == 0
    assert model.history_[-1] == pytest.approx(model.score(SEQUENCES))
    assert model.history_[-1] > model.history_[0]
    states, probs = model.predict(SEQUENCES), model.predict_proba(SEQUENCES)
    for row, score, path, marginals in zip(SEQUENCES, scores, states, probs, strict=True):
        ids = torch.from_numpy(row).unsqueeze(0)
        assert score == pytest.approx(float(model.hmm_.log_prob(ids)))
        assert path.tolist() == model.hmm_.viterbi(ids).states[0].tolist()
        assert marginals.shape == (len(row), model.n_states)
        assert np.allclose(marginals.sum(1), 1)
    after = model.next_proba(SEQUENCES)
    assert after.shape == (5, 4) and np.allclose(after.sum(1), 1)
    assert np.allclose(after[2], model.hmm_.next_token(torch.zeros(1, 0).long()).exp())


def test_one_array_with_lengths_is_the_same(model):
    joined, lengths = np.concatenate(SEQUENCES), [len(row) for row in SEQUENCES]
    for X in (joined, joined.reshape(-1, 1), joined.tolist(), torch.from_numpy(joined)):
        assert np.allclose(model.score_sequences(X, lengths), model.score_sequences(SEQUENCES))
        assert (
            model.predict(X, lengths).tolist() == np.concatenate(model.predict(SEQUENCES)).tolist()
        )
        assert model.predict_proba(X, lengths).shape == (len(joined), model.n_states)
        assert model.score(X) == pytest.approx(model.score([joined]))
    square = np.stack([SEQUENCES[0][:4], SEQUENCES[3][:4]])
    assert np.allclose(model.score_sequences(square), model.score_sequences(list(square)))


def test_saved_and_loaded(model, tmp_path):
    model.save(tmp_path / "model")
    loaded = SequenceHMM.load(tmp_path / "model")
    assert loaded.get_params() == model.get_params() and loaded.history_ == model.history_
    assert loaded.score(SEQUENCES) == model.score(SEQUENCES)
    assert loaded.sample(3, 4, [1, 2], 0).tolist() == model.sample(3, 4, [1, 2], 0).tolist()
    weights = tmp_path / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(ValueError, match="is damaged"):
        SequenceHMM.load(tmp_path / "model")
    with pytest.raises(ValueError, match=r"has no config.json"):
        SequenceHMM.load(tmp_path)


@pytest.mark.parametrize("support", ["dense", "blocked", "per-symbol"])
def test_numbers_of_numpy_are_saved(support, tmp_path):
    counts = {"n_states": 4, "n_symbols": 4, "n_blocks": 2, "n_states_per_symbol": 2}
    model = SequenceHMM(
        **{name: np.int64(count) for name, count in counts.items()},
        **{"support": support, "tol": np.float64(1e9), "random_state": np.int64(0)},
        options={"init_scale": np.float32(0.5)},
    )
    model.fit(SEQUENCES).save(tmp_path / "model")
    loaded = SequenceHMM.load(tmp_path / "model")
    assert loaded.get_params() == model.get_params() and loaded.converged_ is True
    assert type(loaded.n_states) is int and loaded.score(SEQUENCES) == model.score(SEQUENCES)


def test_scores_of_the_beginnings_are_saved(tmp_path):
    model = SequenceHMM(2, n_init=3, iterations=2, tol=0, random_state=0).fit(SEQUENCES)
    model.save(tmp_path / "model")
    assert SequenceHMM.load(tmp_path / "model").init_scores_ == model.init_scores_
    assert len(model.init_scores_) == 3
    config = read_object(tmp_path / "model" / CONFIG)
    del config["scores"]  # as in the format before
    write_sealed(tmp_path / "model" / CONFIG, config | {"format": FORMATS[2]})
    assert SequenceHMM.load(tmp_path / "model").init_scores_ == model.history_[-1:]


def test_a_folder_at_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    model = SequenceHMM(2, tol=1e9, random_state=0).fit([0, 1])
    model.save("~/model")
    assert (tmp_path / "model" / CONFIG).exists()
    assert SequenceHMM.load("~/model").score([0, 1]) == model.score([0, 1])


@pytest.mark.parametrize("support", ["dense", "blocked", "per-symbol"])
def test_settings_are_for_the_next_fit(support, tmp_path):
    model = SequenceHMM(
        4, support=support, n_blocks=2, n_states_per_symbol=2, iterations=3, random_state=0
    )
    model.fit(SEQUENCES).set_params(n_states=6, n_symbols=9, support="dense")
    model.save(tmp_path / "model")
    loaded = SequenceHMM.load(tmp_path / "model")
    assert loaded.get_params() == model.get_params() and loaded.n_states == 6
    assert loaded.hmm_.num_states == 4 and type(loaded.hmm_.support) is type(model.hmm_.support)
    for one in (model, loaded):
        probs = one.predict_proba(SEQUENCES)
        assert [part.shape for part in probs] == [(len(row), 4) for row in SEQUENCES]
        assert np.allclose(np.concatenate(probs).sum(1), 1)
    assert loaded.score(SEQUENCES) == model.score(SEQUENCES)
    assert np.array_equal(loaded.next_proba(SEQUENCES), model.next_proba(SEQUENCES))
    assert loaded.fit(SEQUENCES).hmm_.num_states == 6 and loaded.n_symbols_ == 9


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("start", 0.5, "start is no distribution"),
        ("emission", 0.0, "emission is no distribution"),
        ("emission", np.nan, "emission holds NaN"),
        ("transition.0", np.inf, "transition.0 holds NaN or infinity"),
        ("start", 1j, "start is of the type torch.complex"),
    ],
)
def test_tensors_that_are_no_probabilities(tmp_path, name, value, said):
    SequenceHMM(3, iterations=1, random_state=0).fit(SEQUENCES).save(tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    tensors[name] = tensors[name].to(torch.complex64) if value == 1j else tensors[name].clone()
    tensors[name].view(-1)[0] = value
    save_file(tensors, tmp_path / WEIGHTS)
    config = read_object(tmp_path / CONFIG)
    write_sealed(tmp_path / CONFIG, config | {"files": {WEIGHTS: sha256_of(tmp_path / WEIGHTS)}})
    with pytest.raises(ValueError, match=said):
        SequenceHMM.load(tmp_path)


def change(folder, **fields):
    """Give a saved model's configuration other values, with a seal that fits."""
    config = read_object(folder / CONFIG, finite=False)
    hashes = {WEIGHTS: sha256_of(folder / WEIGHTS)}
    write_sealed(folder / CONFIG, config | {"files": hashes} | fields)


@pytest.mark.parametrize(
    ("row", "settings", "said"),
    [
        (-1e30, {}, "are no distributions"),  # in float32 every probability of the row is one
        (5e4, {}, "normaliser of its transitions reaches 5e[+]04"),
        (-torch.inf, {}, "are no distributions"),
        (3.0, {"normalised": True}, "are no distributions"),
    ],
)
def test_transitions_that_are_no_distributions(tmp_path, row, settings, said):
    SequenceHMM(3, iterations=1, random_state=0).fit(SEQUENCES).save(tmp_path)
    tensors = {name: tensor.float() for name, tensor in load_file(tmp_path / WEIGHTS).items()}
    save_file(tensors, tmp_path / WEIGHTS)
    change(tmp_path)
    SequenceHMM.load(tmp_path)
    tensors["transition.0"][1] = row
    save_file(tensors, tmp_path / WEIGHTS)
    change(tmp_path, transitions={"family": "table", "settings": settings})
    with pytest.raises(ValueError, match=said):
        SequenceHMM.load(tmp_path)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"settings": {"n_states": 3, "options": float("nan")}}, "NaN in it|options = nan"),
        ({"settings": {"n_states": 3, "tolerance": float("nan")}}, "has NaN in it"),
        ({"settings": {"n_states": 3, "support": "blncked"}}, "support = 'blncked' is not"),
        ({"settings": {"n_states": -1}}, "n_states = -1 is not"),
        ({"settings": {"n_states": 3, "params": "sx"}}, "params must be of the letters"),
        ({"settings": {"n_states": 3, "relu": 0}}, "unknown field 'relu'"),
        ({"history": [float("nan")]}, "has NaN in it"),
        ({"transitions": {"family": "table", "settings": {"rounded": "no"}}}, "rounded = 'no'"),
        ({"transitions": {"family": "table", "settings": {"round": True}}}, "no setting 'round'"),
    ],
)
def test_a_configuration_that_cannot_be(tmp_path, fields, said):
    SequenceHMM(3, iterations=1, random_state=0).fit(SEQUENCES).save(tmp_path)
    change(tmp_path, **fields)
    with pytest.raises(ValueError, match=said):
        SequenceHMM.load(tmp_path)


def test_what_could_not_be_loaded_is_not_saved(tmp_path):
    model = SequenceHMM(3, iterations=1, tolerance=float("inf"), random_state=0).fit(SEQUENCES)
    for _ in range(2):  # infinity does not hide whose folder it is
        model.save(tmp_path / "model")
    assert SequenceHMM.load(tmp_path / "model").tolerance == float("inf")
    with pytest.raises(ValueError, match="lr = 'fast' is not of the kind float"):
        model.set_params(lr="fast").save(tmp_path / "model")
    assert SequenceHMM.load(tmp_path / "model").lr == 0.01


def test_saving_replaces_only_what_was_saved(tmp_path):
    model = SequenceHMM(2, iterations=1, random_state=0).fit(SEQUENCES)
    model.save(tmp_path / "mywork")
    model.set_params(lr=0.5).save(tmp_path / "mywork")
    assert SequenceHMM.load(tmp_path / "mywork").lr == 0.5
    (tmp_path / "mywork").rename(tmp_path / "mywork.previous")  # killed between two renames
    assert SequenceHMM.load(tmp_path / "mywork").lr == 0.5
    model.save(tmp_path / "mywork")
    assert [path.name for path in tmp_path.iterdir()] == ["mywork"]


@pytest.mark.parametrize(
    "files",
    [
        {"thesis.txt": "years of work"},
        {"config.json": '{"format": "bighmm.SequenceHMM 1"}', "thesis.txt": "years of work"},
        {"config.json": '{"format": 1}', "model.safetensors": ""},
    ],
)
def test_saving_keeps_other_files(files, tmp_path):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match="holds other files than an earlier save"):
        SequenceHMM(2, iterations=1).fit(SEQUENCES).save(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == files


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("years of work")
    with pytest.raises(ValueError, match=r"there is no folder .*file; give one that"):
        SequenceHMM.load(tmp_path / "file")
    with pytest.raises(ValueError, match=r"there is no folder .*none"):
        SequenceHMM.load(tmp_path / "none")
    with pytest.raises(ValueError, match="file is a file, so no folder can be written there"):
        SequenceHMM(2, iterations=1).fit(SEQUENCES).save(tmp_path / "file")
    assert (tmp_path / "file").read_text() == "years of work"


def test_the_same_seed_the_same_model(model):
    again = SequenceHMM(**model.get_params()).fit(SEQUENCES)
    assert again.history_ == model.history_
    assert model.sample(2, 5, random_state=3).shape == (2, 5)
    for state in (np.random.RandomState(1), np.random.default_rng(1), np.int64(1)):
        assert model.sample(1, 3, random_state=state).max() < 4


@given(
    lengths=st.lists(st.integers(0, 8), min_size=1, max_size=4).filter(any),
    symbols=st.integers(1, 4),
    states=st.sampled_from([1, 2, 4]),
    support=st.sampled_from(["dense", "per-symbol"]),
    seed=st.integers(0, 2**31 - 1),
)
@settings(max_examples=25, deadline=None)
def test_the_likelihood_never_falls(lengths, symbols, states, support, seed):
    rows = draws(lengths, symbols, seed)
    model = SequenceHMM(
        *(states, symbols),
        support=support,
        n_states_per_symbol=states,
        iterations=8,
        random_state=seed,
    ).fit(rows)
    history = np.array(model.history_)
    assert np.isfinite(history).all() and history[-1] == pytest.approx(model.score(rows))
    assert (np.diff(history) >= -1e-9 * np.abs(history[1:]) - 1e-12).all()
    for table in to_numpy(model.hmm_).values():
        assert np.isfinite(table).all() and np.allclose(table.sum(-1), 1)
    proba = np.concatenate([*model.predict_proba(rows)])
    assert np.allclose(proba.sum(1), 1) and not np.isnan(model.next_proba(rows)).any()


def test_it_is_hmmlearn_from_the_same_start():
    pytest.importorskip("hmmlearn")
    start = random_hmm("dense-table", states=3, vocabulary=4, seed=5, end=None)
    rows = draws([12, 5, 9], seed=7)
    joined, lengths = np.concatenate(rows).reshape(-1, 1), [12, 5, 9]
    theirs = to_hmmlearn(start, n_iter=6, tol=0, init_params="").fit(joined, lengths)
    ours = SequenceHMM(3, 4, initial=start, iterations=6, tolerance=0)
    ours.fit(joined, lengths=lengths)
    wanted = to_numpy(from_hmmlearn(theirs))
    for name, table in to_numpy(ours.hmm_).items():
        assert np.allclose(table, wanted[name], atol=1e-6)
    assert ours.score(joined, lengths=lengths) == pytest.approx(theirs.score(joined, lengths))
    assert ours.predict(joined, lengths).tolist() == theirs.predict(joined, lengths).tolist()
    assert np.allclose(ours.predict_proba(joined, lengths), theirs.predict_proba(joined, lengths))


def test_it_finds_what_is_there():
    """Two states that each keep to their own symbols for a while."""
    generator = np.random.default_rng(0)
    rows, truth = [], []
    for _ in range(8):
        states = np.repeat(generator.permutation(2), 15)
        rows.append(2 * states + generator.integers(0, 2, 30))
        truth.append(states)
    stuck = SequenceHMM(2, random_state=0).fit(rows)
    model = SequenceHMM(2, random_state=0, n_init=2).fit(rows)
    assert model.score(rows) > stuck.score(rows) + 100  # the second beginning is better
    same = np.concatenate(model.predict(rows)) == np.concatenate(truth)
    assert same.all() or not same.any()
    assert len(model.history_) < 101  # it settled


def test_symbols_that_fitting_did_not_see():
    model = SequenceHMM(2, random_state=0, iterations=3).fit([[0, 1, 0], [1]])
    assert model.n_symbols_ == 2
    with pytest.raises(ValueError, match="symbol 5 in sequence 1 at position 2 is not known"):
        model.score([[0], [1, 0, 5]])
    roomy = SequenceHMM(2, 4, random_state=0, iterations=3).fit([[0, 1, 0], [1]])
    assert np.isfinite(roomy.score([[3, 2]])) and roomy.score([[3, 2]]) < -100
    smooth = SequenceHMM(2, 4, random_state=0, iterations=3, smoothing=0.5).fit([[0, 1, 0], [1]])
    assert -20 < smooth.score([[3, 2]]) < 0
    with pytest.raises(ValueError, match="symbol 4 in sequence 0 at position 0"):
        SequenceHMM(2, 4).fit([[4]])


def test_what_is_impossible_stays_so_without_nan():
    model = SequenceHMM(1, 2, iterations=1)
    model.initial = bighmm.HMM.from_probs(torch.ones(1), torch.ones(1, 1), torch.tensor([[1.0, 0]]))
    with pytest.raises(ValueError, match="sequence 1 has probability zero in the initial HMM"):
        model.fit([[0, 0], [0, 1]])
    model.fit([[0, 0]])
    assert model.score([[1]]) == -np.inf and model.predict([[0, 1]])[0].tolist() == [-1, -1]
    assert not model.predict_proba([[0, 1]])[0].any() and not model.next_proba([[1]]).any()


@pytest.mark.parametrize(
    "X, lengths, sentence",
    [
        ([], None, "there are no sequences"),
        ([[0.5, 1.0]], None, "sequence 0 must be one list of whole numbers, .* not float64"),
        ([[0, 1], ["a"]], None, "some sequences have numbers and others strings"),
        ([[0, "a"]], None, "sequence 0 must be one list of whole numbers, .* not object"),
        ([[[0, 1], [1]]], None, "sequence 0 must be one list of whole numbers"),
        ([np.zeros((2, 3), int)], None, r"int64 of shape \(2, 3\)"),
        ([[0, -2]], None, "sequence 0 has the symbol -2; symbols go from 0 on"),
        ([[0, 1.5], [1]], None, "sequence 0 must be one list of whole numbers"),
        ([[0, np.inf]], None, "sequence 0 must be one list of whole numbers"),
        ([[0, True, None]], None, "sequence 0 must be one list of whole numbers, or of strings"),
        ([0, 1, 2], [2], "lengths add up to 2, but there are 3 symbols"),
        ([0, 1, 2], [4, -1], "lengths must be a list of whole numbers"),
        ([0, 1, 2], 3, "lengths must be a list of whole numbers"),
        ([[], []], None, "hold no symbols"),
        (None, None, "must be a list of arrays or one array of .*, not NoneType"),
        (3, None, "must be a list of arrays or one array of .*, not int"),
        ("abc", None, "must be a list of arrays or one array of .*, not str"),
        (iter([[0]]), None, "must be a list of arrays or one array of .*, not list_it"),
        ((row for row in [[0]]), None, "one array of .*, not generator"),
    ],
)
def test_bad_input(X, lengths, sentence):
    fitted = SequenceHMM(2, 4, iterations=1).fit([[0, 1]])
    with pytest.raises(ValueError, match=sentence):
        SequenceHMM(2).fit(X, lengths=lengths)
    if sentence != "hold no symbols":
        with pytest.raises(ValueError, match=sentence):
            fitted.score(X, lengths=lengths)


@pytest.mark.parametrize("prefix", [3, "ab", (symbol for symbol in [0, 1]), [[0, 1], [1, 0]]])
def test_bad_prefix(prefix):
    model = SequenceHMM(2, iterations=1).fit([[0, 1]])
    with pytest.raises(ValueError, match="sequence 0 must be one list of whole numbers"):
        model.sample(prefix=prefix)
    assert model.sample(length=3, prefix=[]).shape == (1, 3)


@pytest.mark.parametrize(
    "wrong, sentence",
    [
        ({"n_states": 0}, "n_states must be a whole number of at least 1, not 0"),
        ({"n_states": 2.5}, "n_states must be a whole number of at least 1, not 2.5"),
        ({"n_states": None}, "n_states must be a whole number of at least 1, not None"),
        ({"n_states": True}, "n_states must be a whole number of at least 1, not True"),
        ({"n_symbols": 4.5}, "n_symbols must be a whole number of at least 1, not 4.5"),
        ({"n_symbols": 0}, "n_symbols must be a whole number of at least 1, not 0"),
        ({"n_blocks": 1.5}, "n_blocks must be a whole number"),
        (
            {"n_states_per_symbol": "2"},
            "n_states_per_symbol must be a whole number of at least 1, not '2'",
        ),
        ({"support": "round"}, "there is no support 'round'"),
        ({"support": "blocked", "n_blocks": 3}, "4 states cannot be shared equally by 3 blocks"),
        ({"parameterisation": "neural"}, "needs parameterisation='scalar', not 'neural'"),
        ({"parameterisation": "magic", "optimizer": "adamw"}, "no parameterisation 'magic'"),
        (
            {"options": {"depth": 2}},
            "do not fit the parameterisation 'scalar', which has init_scale",
        ),
        ({"optimizer": "sgd"}, "there is no optimizer 'sgd'"),
        ({"options": {"init_scale": "wide"}}, "options {'init_scale': 'wide'} do not fit"),
        ({"iterations": 0}, "iterations must be a whole number of at least 1, not 0"),
        ({"iterations": 2.5}, "iterations must be a whole number of at least 1, not 2.5"),
        ({"batch_size": None}, "batch_size must be a whole number of at least 1, not None"),
        ({"n_init": 0}, "n_init must be a whole number of at least 1, not 0"),
        ({"tolerance": None}, "tolerance must be a number, not None"),
        ({"smoothing": "much"}, "smoothing must be a number, not 'much'"),
        ({"lr": np.nan}, "lr must be a number, not nan"),
        ({"smoothing": -1.0}, "smoothing must be finite and not below 0"),
        ({"optimizer": "adamw", "lr": 0.0}, "lr must be finite and above 0"),
        ({"initial": random_hmm("dense-table")}, "the initial HMM has 6 states and 5 symbols"),
        ({"optimizer": "adamw", "smoothing": 0.1}, "smoothing is for optimizer='baum-welch'"),
        ({"initial": "x"}, "initial must be an HMM or None, not str"),
        ({"random_state": "seven"}, "random_state must be a whole number from 0 to"),
        ({"random_state": -1}, r"random_state must be a whole number from 0 to .*, not -1"),
        ({"random_state": 2**63}, "random_state must be a whole number from 0 to"),
    ],
)
def test_bad_settings(wrong, sentence):
    with pytest.raises(ValueError, match=sentence):
        SequenceHMM(**{"n_states": 4, **wrong}).fit(SEQUENCES)


def test_before_fit():
    model = SequenceHMM(2)
    for ask in (model.score, model.predict, model.predict_proba, model.next_proba):
        with pytest.raises(ValueError, match="has not been fitted; call fit first"):
            ask(SEQUENCES)
    with pytest.raises(ValueError, match="has not been fitted"):
        model.sample()
    with pytest.raises(ValueError, match="has not been fitted"):
        model.save("nowhere")
    assert repr(SequenceHMM(2, smoothing=0.5)) == "SequenceHMM(n_states=2, smoothing=0.5)"


@pytest.mark.parametrize("name", ["hmm_", "history_", "converged_", "init_scores_", "n_iter_"])
def test_attributes_before_fit(name):
    model = SequenceHMM(2, tol=1e9)
    with pytest.raises(NotFittedError, match="has not been fitted; call fit first"):
        getattr(model, name)
    assert not hasattr(model, name) and hasattr(model.fit([0, 1]), name)


@pytest.mark.parametrize("wrong", [{"n": 2.0}, {"n": 0}, {"length": 1.5}, {"length": -1}])
def test_how_many_samples(wrong):
    model = SequenceHMM(2, tol=1e9).fit([0, 1])
    with pytest.raises(ValueError, match="n must be a whole number of at least 1 and length one"):
        model.sample(**wrong)
    assert model.sample(np.int64(2), np.int64(3)).shape == (2, 3)


def test_rows_of_very_different_length_are_not_padded_together():
    rows = Alphabet(1).rows(read([np.zeros(1, int)] * 1000 + [np.zeros(100_000, int)]))
    sizes = [ids.numel() for _, ids, _ in rows.batches()]
    assert max(sizes) <= 2**20 and sum(len(chosen) for chosen, _, _ in rows.batches()) == 1001


def test_descent_takes_no_tables():
    model = SequenceHMM(2, optimizer="adamw")
    model.transmat_ = np.eye(2)
    with pytest.raises(ValueError, match="transmat_ was set, but optimizer='adamw' begins at rand"):
        model.fit([0, 1])


def test_parameters():
    model = SequenceHMM(3).set_params(n_states=2, lr=0.5)
    assert model.get_params()["n_states"] == 2 and model.get_params()["lr"] == 0.5
    with pytest.raises(ValueError, match="SequenceHMM has no parameter 'states'"):
        model.set_params(states=3)


def test_with_scikit_learn():
    pytest.importorskip("sklearn")
    from sklearn.base import clone
    from sklearn.model_selection import GridSearchCV, cross_val_score

    start = random_hmm("dense-table", states=2, vocabulary=4, end=None)
    twin = clone(SequenceHMM(2, initial=start, smoothing=0.5))
    assert twin.smoothing == 0.5 and twin.initial.num_states == 2
    rows = draws([8] * 6)
    base = SequenceHMM(2, 4, iterations=2, smoothing=0.1, random_state=0)
    search = GridSearchCV(base, {"n_states": [1, 2]}, cv=2).fit(rows)
    assert search.best_params_["n_states"] in (1, 2)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert np.isfinite(search.best_estimator_.score(rows))
    assert np.isfinite(cross_val_score(base, rows, cv=3)).all()
