"""Filtering one symbol at a time, against the answers about whole sequences."""

import numpy as np
import pytest

from bighmm.sequences import SequenceHMM
from models import random_hmm

STREAM = [0, 2, -1, 1, 3, 3, None, 0]


@pytest.fixture(params=["dense-table", "blocked-flat"])
def model(request):
    return SequenceHMM.from_hmm(random_hmm(request.param, states=4, vocabulary=4, seed=3, end=None))


def test_every_step_is_that_of_the_whole(model):
    online = model.filter()
    for n, step in enumerate(online.follow(STREAM), start=1):
        whole = [STREAM[:n]]
        assert online.log_prob == pytest.approx(model.score(whole)) and online.length == n
        assert np.allclose(step.proba, model.predict_proba(whole)[0][-1])
        assert np.allclose(online.state_proba(), step.proba)
        assert step.state == step.proba.argmax() == online.state
        assert np.allclose(online.next_proba(), model.next_proba(whole)[0])
        assert np.allclose(online.next_proba(3), model.next_proba([[*STREAM[:n], None, None]])[0])
    online.reset()
    assert online.length == 0 and np.allclose(online.next_proba(), model.next_proba([[]])[0])


def test_changes_as_they_happen():
    model = SequenceHMM.from_tables(
        [0.5, 0.5], [[0.9, 0.1], [0.1, 0.9]], [[0.9, 0.1], [0.1, 0.9]], symbols=["up", "down"]
    )
    steps = list(model.filter().follow(["up", "up", "down", "down", "down", "up"]))
    assert [step.state for step in steps] == [0, 0, 1, 1, 1, 0]
    assert [step.changed for step in steps] == [False, False, True, False, False, True]
    assert steps[0].symbol == "up" and steps[0].log_prob == pytest.approx(np.log(0.5))
    with pytest.raises(ValueError, match="symbol left in sequence 0 at position 0 is not known"):
        model.filter().update("left")
    smooth = model.set_params(unseen="smooth").filter()
    assert smooth.update("left").log_prob == pytest.approx(np.log(1 / 3))


def test_what_is_impossible():
    model = SequenceHMM.from_tables([1.0, 0.0], [[0.0, 1.0], [1.0, 0.0]], [[1, 0], [0, 1]])
    first, second = model.filter().follow([0, 0])
    assert first.state == 0 and second.state == -1 and not second.proba.any()
    assert second.log_prob == -np.inf and second.changed


@pytest.mark.parametrize("symbols", [[0, 1], [], np.array([0, 1]), [[0], [1]]])
def test_one_symbol_at_a_time(model, symbols):
    online = model.filter()
    with pytest.raises(ValueError, match=r"a filter takes in one symbol at a time, not [02]"):
        online.update(symbols)
    assert online.length == 0
    expected = online.update(1).log_prob
    for one in ([1], np.array(1), np.int8(1)):
        online.reset()
        assert online.update(one).log_prob == expected


def test_mistakes(model):
    online = model.filter()
    with pytest.raises(ValueError, match="there is no state before the first symbol"):
        online.state_proba()
    with pytest.raises(ValueError, match="ahead must be at least 1, not 0"):
        online.next_proba(0)
    with pytest.raises(ValueError, match="ahead must not be below 0, not -1"):
        online.state_proba(-1)
