"""What scikit-learn's own checks find."""

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
