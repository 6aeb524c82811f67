"""hmmlearn gives the same results for converted models."""

import numpy as np
import pytest
import torch

from bighmm import baum_welch
from bighmm.interop import from_hmmlearn, to_hmmlearn, to_numpy
from models import KINDS, ragged, random_hmm

LENGTHS = [9, 4, 1, 12]


def sequences(vocabulary, seed=0):
    tokens, lengths = ragged(vocabulary, LENGTHS, seed)
    joined = np.concatenate([row[:n].numpy() for row, n in zip(tokens, lengths, strict=True)])
    return tokens, lengths, joined.reshape(-1, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_log_prob_posterior_and_viterbi_are_equal(kind):
    pytest.importorskip("hmmlearn")
    hmm = random_hmm(kind, states=6, vocabulary=5, seed=4, end=None)
    theirs = to_hmmlearn(hmm)
    tokens, lengths, joined = sequences(5)
    log_prob, marginals = theirs.score_samples(joined, LENGTHS)
    assert float(hmm.log_prob(tokens, lengths).sum()) == pytest.approx(log_prob)
    ours = hmm.posterior(tokens, lengths)
    dense = torch.zeros(*tokens.shape, 6, dtype=torch.float64)
    dense.scatter_add_(2, ours.states.clamp(min=0), ours.marginals)
    inside = torch.arange(tokens.shape[1]) < lengths.unsqueeze(1)
    assert np.allclose(dense[inside].numpy(), marginals)
    best, path = theirs.decode(joined, LENGTHS)
    found = hmm.viterbi(tokens, lengths)
    assert float(found.log_prob.sum()) == pytest.approx(best)
    assert found.states[inside].tolist() == path.tolist()


def test_conversion_to_hmmlearn_and_back():
    pytest.importorskip("hmmlearn")
    hmm = random_hmm("dense-table", states=3, vocabulary=4, end=None)
    back = from_hmmlearn(to_hmmlearn(hmm))
    for one, other in zip(to_numpy(hmm).values(), to_numpy(back).values(), strict=True):
        assert np.allclose(one, other, atol=1e-12)
    assert from_hmmlearn(to_hmmlearn(hmm), end=2).end == 2


def test_conversion_of_a_fitted_model():
    hmmlearn = pytest.importorskip("hmmlearn.hmm")
    tokens, lengths, joined = sequences(4, seed=1)
    theirs = hmmlearn.CategoricalHMM(3, n_iter=5, random_state=0).fit(joined, LENGTHS)
    ours = from_hmmlearn(theirs)
    assert float(ours.log_prob(tokens, lengths).sum()) == pytest.approx(
        theirs.score(joined, LENGTHS)
    )


def test_baum_welch_gives_the_same_parameters():
    """After five iterations from the same tables."""
    pytest.importorskip("hmmlearn")
    hmm = random_hmm("dense-table", states=3, vocabulary=4, seed=2, end=None)
    tokens, lengths, joined = sequences(4, seed=2)
    theirs = to_hmmlearn(hmm, n_iter=5, tol=0, init_params="").fit(joined, LENGTHS)
    fitted = baum_welch(hmm, tokens, lengths, iterations=5)
    for ours, wanted in zip(
        to_numpy(fitted.hmm).values(), to_numpy(from_hmmlearn(theirs)).values(), strict=True
    ):
        assert np.allclose(ours, wanted, atol=1e-6)
    assert fitted.log_probs == pytest.approx(list(theirs.monitor_.history))


def test_errors_of_wrong_models_and_without_hmmlearn(monkeypatch):
    with pytest.raises(ValueError, match="object has no startprob_; a CategoricalHMM is needed"):
        from_hmmlearn(object())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"hmmlearn is not installed; install bighmm\[hmmlearn\]"):
        to_hmmlearn(random_hmm("dense-table"))
