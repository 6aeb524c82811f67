"""What scikit-learn's own checks find."""

import copy
import io
import pickle

import numpy as np
import pytest

from bighmm.sequences import NotFittedError, SequenceHMM

sklearn = pytest.importorskip("sklearn")

NO_FEATURES = "an array (N, T) is N sequences, of which each may have another length"
PAIR = "score_samples gives log p and posteriors, as hmmlearn's does, not a number for each row"
EXPECTED_TO_FAIL = {
    "check_n_features_in": NO_FEATURES,
    "check_n_features_in_after_fitting": NO_FEATURES,
    "check_fit2d_predict1d": "one array is one sequence",
    "check_methods_sample_order_invariance": PAIR,
    "check_methods_subset_invariance": PAIR,
    "check_positive_only_tag_during_fit": "-1 is missing, other negatives are refused",
    "check_estimators_empty_data_messages": "the sentence is another one",
}


@pytest.mark.filterwarnings("ignore")
def test_check_estimator():
    from sklearn.utils.estimator_checks import check_estimator

    # Checks ask about rows that were not fitted, which have other symbols.
    model = SequenceHMM(2, iterations=2, tolerance=0, random_state=0, unseen="smooth")
    results = check_estimator(
        model, expected_failed_checks=EXPECTED_TO_FAIL, on_fail=None, on_skip=None
    )
    status = {}
    for result in results:
        status.setdefault(result["status"], []).append(result["check_name"])
    assert "failed" not in status, status["failed"]
    assert set(status["xfail"]) == set(EXPECTED_TO_FAIL) and len(status["passed"]) > 25


def test_not_fitted():
    from sklearn.exceptions import NotFittedError as Theirs
    from sklearn.utils.validation import check_is_fitted

    for kind in (Theirs, NotFittedError, ValueError, AttributeError):
        with pytest.raises(kind, match="this SequenceHMM has not been fitted; call fit first"):
            SequenceHMM(2).predict([[0]])
    with pytest.raises(Theirs):
        check_is_fitted(SequenceHMM(2))
    check_is_fitted(SequenceHMM(1, iterations=1, tolerance=0).fit([[0, 1]]))


def test_its_warning_is_theirs_too():
    from sklearn.exceptions import ConvergenceWarning as Theirs

    with pytest.warns(Theirs, match="use more iterations"):
        SequenceHMM(2, iterations=1, random_state=0).fit([[0, 1, 0, 2, 1]])


def test_pipelines_and_pickles():
    from sklearn.pipeline import make_pipeline

    rows = np.random.default_rng(0).integers(0, 3, (6, 9))
    model = SequenceHMM(2, iterations=2, tolerance=0, random_state=0)
    line = make_pipeline(model).fit(rows, np.zeros(6))
    assert np.isfinite(line.score(rows, np.zeros(6))) and len(line.predict(rows)) == 6
    again = pickle.loads(pickle.dumps(model))
    assert again.score(rows) == model.score(rows)


def ragged():
    draw = np.random.default_rng(0)
    return [draw.integers(0, 3, length) for length in (9, 4, 7, 1, 12, 5)]


def test_search_over_sequences_of_different_lengths():
    from sklearn.model_selection import GridSearchCV

    model = SequenceHMM(2, 3, iterations=2, tolerance=0, smoothing=0.1, random_state=0)
    for rows in (ragged(), [row.tolist() for row in ragged()]):
        search = GridSearchCV(model, {"n_states": [1, 2]}, cv=2, error_score="raise").fit(rows)
        scores = search.cv_results_["mean_test_score"]
        parts = [(rows[:3], rows[3:]), (rows[3:], rows[:3])]
        for states, score in zip((1, 2), scores, strict=True):
            twin = SequenceHMM(**{**model.get_params(), "n_states": states})
            assert score == pytest.approx(np.mean([twin.fit(b).score(a) for a, b in parts]))


@pytest.mark.parametrize("support", ["dense", "blocked"])
def test_copies_after_every_question(support):
    import joblib
    from sklearn.base import clone

    rows = ragged()
    model = SequenceHMM(4, support=support, n_blocks=2, iterations=2, tolerance=0, random_state=0)
    model.fit(rows)
    expected = model.next_proba(rows)
    model.filter().next_proba(3)
    assert np.isfinite(model.score([0, None])) and model.sample(2, 3).shape == (2, 3)
    file = io.BytesIO()
    joblib.dump(model, file)
    file.seek(0)
    copies = [joblib.load(file), pickle.loads(pickle.dumps(model)), copy.deepcopy(model)]
    for again in copies:
        assert np.array_equal(again.next_proba(rows), expected)
    twin = clone(SequenceHMM(4, initial=model.hmm_))
    assert np.array_equal(twin.initial.start, model.hmm_.start)


def test_in_threads_of_joblib():
    import joblib

    model = SequenceHMM(2, iterations=2, tolerance=0, random_state=0).fit(ragged())
    model.next_proba([[0, 1]])
    ask = joblib.delayed(SequenceHMM.score)
    with joblib.parallel_config("threading", n_jobs=2):
        found = joblib.Parallel()(ask(model, row) for row in ragged())
    assert found == pytest.approx(model.score_sequences(ragged()).tolist())
