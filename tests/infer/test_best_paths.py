"""The k best state paths against the list of all paths."""

import math

import pytest
import torch

from bighmm.hmm import HMM
from bighmm.infer.reference import Enumeration
from bighmm.ops import memory
from models import KINDS, ragged, random_hmm

LENGTHS = [4, 1, 0, 3]


def check(hmm, tokens, lengths, k):
    """Scores in order, of different paths, and those of the k likeliest that are possible."""
    answer = hmm.best_paths(tokens, k, lengths)
    for b, n in enumerate(lengths.tolist()):
        every = Enumeration(hmm, tokens[b, :n].tolist()).paths
        expected = sorted((p for p in every.values() if p > 0), reverse=True)[:k]
        found = len(expected)
        assert answer.log_prob[b, :found].exp().tolist() == pytest.approx(expected)
        paths = [tuple(path) for path in answer.states[b, :found, :n].tolist()]
        assert len(set(paths)) == found
        assert [every[path] for path in paths] == pytest.approx(expected)
        assert (answer.log_prob[b, found:] == -math.inf).all()
        assert (answer.states[b, found:] == -1).all() and (answer.states[b, :, n:] == -1).all()


@pytest.mark.parametrize("k", [1, 2, 7, 2000])
@pytest.mark.parametrize("reset", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_against_all_paths(kind, reset, k):
    hmm = random_hmm(kind, seed=3, reset=reset)
    tokens, lengths = ragged(hmm.vocabulary_size, LENGTHS, seed=3)
    tokens[0, 1] = hmm.end
    check(hmm, tokens, lengths, k)


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_is_viterbis(kind):
    hmm = random_hmm(kind, seed=8)
    tokens, lengths = ragged(hmm.vocabulary_size, LENGTHS, seed=8)
    best, several = hmm.viterbi(tokens, lengths), hmm.best_paths(tokens, 3, lengths)
    assert torch.equal(several.states[:, 0], best.states)
    torch.testing.assert_close(several.log_prob[:, 0], best.log_prob)


@pytest.mark.parametrize("k", [1, 4, 5, 30])
def test_ties_and_paths_that_cannot_be(k):
    """Uniform probabilities, and zeros among them: 12 of the 27 paths are possible."""
    half = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]])
    hmm = HMM.from_probs(torch.full((3,), 1 / 3), half, torch.full((3, 2), 0.5))
    check(hmm, torch.tensor([[0, 1, 1], [1, 0, 0]]), torch.tensor([3, 2]), k)
    answer = hmm.best_paths([[0, 1, 1]], k)
    assert int((answer.log_prob > -math.inf).sum()) == min(k, 12)


@pytest.mark.parametrize("kind", KINDS)
def test_in_small_pieces(kind, monkeypatch):
    hmm = random_hmm(kind, seed=3)
    tokens, lengths = ragged(hmm.vocabulary_size, LENGTHS, seed=3)
    whole = hmm.best_paths(tokens, 4, lengths)
    monkeypatch.setattr(memory, "WORKING", 20)
    answer = hmm.best_paths(tokens, 4, lengths)
    assert torch.equal(answer.states, whole.states)
    torch.testing.assert_close(answer.log_prob, whole.log_prob)


@pytest.mark.parametrize("kind", KINDS)
def test_long_texts_keep_their_digits(kind):
    """In float32 the sum of 5,000 terms leaves little for the difference between two states."""
    rough = random_hmm(kind, states=6, end=None, scale=0.3).to("cpu", torch.float32)
    tokens = torch.randint(5, (1, 5000), generator=torch.Generator().manual_seed(1))
    hmm = rough.to("cpu", torch.float64)
    best = hmm.viterbi(tokens).log_prob
    found, several = rough.viterbi(tokens), rough.best_paths(tokens, 2)
    for states, said in (
        (found.states, found.log_prob),
        (several.states[:, 0], several.log_prob[:, 0]),
    ):
        assert float(best - hmm.joint_log_prob(tokens, states)) < 1e-4  # as good, but for ties
        torch.testing.assert_close(said.double(), best, rtol=1e-7, atol=0)
